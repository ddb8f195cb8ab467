"""A report as text, JSON or GitHub annotations: one pure function each, report -> string."""

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.lint.document import load_text
from holdfast.lint.engine import Report
from holdfast.lint.finding import Finding, Severity
from holdfast.support.printable import printable

WIDTH = 160  # of a quoted line
_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning"}


def text(report: Report) -> str:
    """For people: place, message, the line with a caret, the fact it was judged by, the fix."""
    blocks = [_block(finding) for finding in report.active]
    for f in report.suppressed:
        blocks.append(
            f"{_place(f)}: ignored [{f.rule}] {printable(f.message)}: {printable(f.suppressed)}\n"
        )
    return "\n".join([*blocks, summary(report)]) + "\n"


def summary(report: Report) -> str:
    counts = ", ".join(f"{report.count(severity)} {severity.value}" for severity in Severity)
    more = {
        "ignored": len(report.suppressed),
        "documents not judged": report.unjudged,
    }
    more["that are no Kubernetes objects"] = report.foreign
    parts = [f"{report.objects} objects in {report.files} files: {counts}"]
    return "; ".join([*parts, *(f"{count} {what}" for what, count in more.items() if count)])


def _block(finding: Finding) -> str:
    lines = [
        f"{_place(finding)}: {finding.severity.value}: {printable(finding.message)}"
        f" [{finding.rule}]"
    ]
    lines += _snippet(finding)
    if finding.basis:
        lines.append(f"    {printable(finding.basis)}")
    lines.append(f"    fix: {printable(finding.fix)}")
    return "\n".join(lines) + "\n"


def _place(finding: Finding) -> str:
    """Never `::` at the beginning of a line, which GitHub's runner would take for a command."""
    place = printable(finding.place, 4_096)
    return f"./{place}" if place.lstrip().startswith("::") else place


def _snippet(finding: Finding) -> list[str]:
    lines = _lines(finding.file)
    mark = finding.mark
    if not 0 < mark.line <= len(lines) or mark.column > WIDTH:
        return []
    # One character for one, so that the carets stay below what they mean.
    line = "".join(c if c.isprintable() else " " for c in lines[mark.line - 1][:WIDTH]).replace(
        "##[", "#_["
    )
    carets = "^" * max(1, min(mark.end, len(line) + 1) - mark.column)
    number = str(mark.line)
    return [f"  {number} | {line}", f"  {' ' * len(number)} | {' ' * (mark.column - 1)}{carets}"]


@cache
def _lines(file: str) -> list[str]:
    try:
        return load_text(Path(file)).splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def as_json(report: Report) -> str:
    """One object for programs; `schema` says how to read it."""
    counts = {name: getattr(report, name) for name in ("files", "objects", "unjudged", "foreign")}
    body = (
        {"schema": "holdfast.lint/1"}
        | counts
        | {"findings": [_finding(finding) for finding in report.findings]}
    )
    return json.dumps(body, indent=2) + "\n"


def _finding(finding: Finding) -> dict[str, Any]:
    mark = finding.mark
    more = {
        "severity": finding.severity.value,
        "line": mark.line,
        "column": mark.column,
        "end": mark.end,
    }
    return {key: value for key, value in asdict(finding).items() if key != "mark"} | more


def github(report: Report) -> str:
    """Workflow commands: GitHub shows them at the line of the pull request."""
    return "".join(_command(finding) + "\n" for finding in report.active)


def _command(finding: Finding) -> str:
    mark = finding.mark
    where = f"file={_property(printable(finding.file, 4_096))},line={mark.line},col={mark.column},endColumn={mark.end}"
    basis = f"\n{printable(finding.basis)}" if finding.basis else ""
    text = f"{printable(finding.message)}{basis}\nfix: {printable(finding.fix)}"
    return f"::{_LEVEL.get(finding.severity, 'notice')} {where},title={finding.rule}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
