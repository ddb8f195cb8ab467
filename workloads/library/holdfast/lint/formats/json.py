"""One object for programs; `schema` says how to read it."""

import json
from dataclasses import asdict
from typing import Any

from holdfast.lint.engine import Report
from holdfast.lint.finding import Finding

SCHEMA = "holdfast.lint/1"


def render(report: Report) -> str:
    body = {
        "schema": SCHEMA,
        "files": report.files,
        "objects": report.objects,
        "unjudged": report.unjudged,
        "foreign": report.foreign,
        "findings": [_finding(finding) for finding in report.findings],
    }
    return json.dumps(body, indent=2) + "\n"


def _finding(finding: Finding) -> dict[str, Any]:
    mark = finding.mark
    extra = {"severity": finding.severity.value, "fingerprint": finding.fingerprint}
    place = {"line": mark.line, "column": mark.column, "end": mark.end}
    return {key: value for key, value in asdict(finding).items() if key != "mark"} | extra | place
