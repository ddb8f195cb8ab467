"""Formats a report as text, JSON or GitHub annotations: one pure function each."""

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.lint.document import load_text
from holdfast.lint.engine import Report
from holdfast.lint.finding import Finding, Severity
from holdfast.support.printable import printable

# Characters of a quoted line.
WIDTH = 160
_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning"}


def text(report: Report) -> str:
    """Formats for people: place, message, line with a caret, fact it was judged by, fix."""
    blocks = [format_finding(finding) for finding in report.active]
    for finding in report.suppressed:
        place = _format_place(finding)
        message = printable(finding.message)
        reason = printable(finding.suppressed)
        blocks.append(f"{place}: ignored [{finding.rule}] {message}: {reason}\n")
    blocks.append(summary(report))
    return "\n".join(blocks) + "\n"


def summary(report: Report) -> str:
    counts: list[str] = []
    for severity in Severity:
        counts.append(f"{report.count(severity)} {severity.value}")
    parts = [f"{report.objects} objects in {report.files} files: {', '.join(counts)}"]
    remarks = {
        "ignored": len(report.suppressed),
        "documents not judged": report.unjudged,
        "that are no Kubernetes objects": report.foreign,
    }
    for remark, count in remarks.items():
        if count:
            parts.append(f"{count} {remark}")
    return "; ".join(parts)


def format_finding(finding: Finding) -> str:
    """Formats one finding for people, in several lines."""
    place = _format_place(finding)
    severity = finding.severity.value
    message = printable(finding.message)
    lines = [f"{place}: {severity}: {message} [{finding.rule}]"]
    lines += _quote(finding)
    if finding.basis:
        lines.append(f"    {printable(finding.basis)}")
    lines.append(f"    fix: {printable(finding.fix)}")
    return "\n".join(lines) + "\n"


def _format_place(finding: Finding) -> str:
    """Formats file, line and column.

    Never `::` at the beginning of a line, which GitHub's runner would take for a command.
    """
    place = printable(finding.place, 4_096)
    return f"./{place}" if place.lstrip().startswith("::") else place


def _quote(finding: Finding) -> list[str]:
    lines = _load_lines(finding.file)
    mark = finding.mark
    if not 0 < mark.line <= len(lines) or mark.column > WIDTH:
        return []
    line = lines[mark.line - 1][:WIDTH]
    # One character for one, so that the carets stay below what they mean.
    line = "".join(character if character.isprintable() else " " for character in line)
    line = line.replace("##[", "#_[")
    end = min(mark.end, len(line) + 1)
    carets = "^" * max(1, end - mark.column)
    number = str(mark.line)
    margin = " " * len(number)
    indent = " " * (mark.column - 1)
    return [f"  {number} | {line}", f"  {margin} | {indent}{carets}"]


@cache
def _load_lines(file: str) -> list[str]:
    try:
        return load_text(Path(file)).splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def format_json(report: Report) -> str:
    """Formats one object for programs; its `schema` says how to read it."""
    body = {
        "schema": "holdfast.lint/1",
        "files": report.files,
        "objects": report.objects,
        "unjudged": report.unjudged,
        "foreign": report.foreign,
        "findings": [_encode(finding) for finding in report.findings],
    }
    return json.dumps(body, indent=2) + "\n"


def _encode(finding: Finding) -> dict[str, Any]:
    body = asdict(finding)
    mark = body.pop("mark")
    return body | {"severity": finding.severity.value} | mark


def format_github(report: Report) -> str:
    """Formats workflow commands: GitHub shows them at the line of the pull request."""
    return "".join(_format_command(finding) + "\n" for finding in report.active)


def _format_command(finding: Finding) -> str:
    mark = finding.mark
    file = _escape_property(printable(finding.file, 4_096))
    position = f"file={file},line={mark.line},col={mark.column},endColumn={mark.end}"
    basis = f"\n{printable(finding.basis)}" if finding.basis else ""
    message = f"{printable(finding.message)}{basis}\nfix: {printable(finding.fix)}"
    level = _LEVEL.get(finding.severity, "notice")
    return f"::{level} {position},title={finding.rule}::{_escape(message)}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")
