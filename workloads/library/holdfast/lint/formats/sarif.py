"""SARIF 2.1.0, for code scanning. Suppressed findings are there too, marked as such."""

import json
from typing import Any

from holdfast.lint.engine import Report
from holdfast.lint.finding import Finding, Severity
from holdfast.lint.registry import Rule, all_rules

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def render(report: Report) -> str:
    driver = {"name": "holdfast-lint", "version": "0.1.0", "rules": [_rule(rule) for rule in all_rules().values()]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding) for finding in report.findings],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": rule.id,
        "name": rule.slug,
        "shortDescription": {"text": rule.what},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why}\nFix: {rule.fix}\nSource: {rule.source}"},
        "defaultConfiguration": {"level": _LEVEL[rule.severity]},
    }
    if rule.source.startswith("https://"):
        described["helpUri"] = rule.source.partition(" ")[0]
    return described


def _result(finding: Finding) -> dict[str, Any]:
    mark = finding.mark
    basis = f" {finding.basis}." if finding.basis else ""
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": _LEVEL[finding.severity],
        "message": {"text": f"{finding.message}.{basis} Fix: {finding.fix}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": finding.file.removeprefix("./")},
                    "region": {"startLine": mark.line, "startColumn": mark.column, "endColumn": mark.end},
                }
            }
        ],
        "partialFingerprints": {"holdfast/v1": finding.fingerprint},
    }
    if finding.suppressed:
        result["suppressions"] = [{"kind": "inSource", "justification": finding.suppressed}]
    return result
