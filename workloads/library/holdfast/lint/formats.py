"""A report as text, JSON, SARIF, GitHub annotations or Markdown: one pure function each, report -> string."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.contract.printable import printable
from holdfast.lint.document import load_text
from holdfast.lint.engine import Report
from holdfast.lint.finding import Finding, Severity
from holdfast.lint.registry import Rule, all_rules

WIDTH = 160  # of a quoted line
MAX_MARKDOWN = 60_000
"""Under GitHub's limit for a job summary or a comment on a pull request."""
_MARKUP = frozenset("&<>`*[]|@\\")
_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning"}


def text(report: Report) -> str:
    """For people: place, message, the line with a caret, the fact it was judged by, the fix."""
    blocks = [_block(finding) for finding in report.active]
    blocks += [
        f"{_place(f)}: ignored [{f.rule}] {printable(f.message)}: {printable(f.suppressed)}\n"
        for f in report.suppressed
    ]
    return "\n".join([*blocks, summary(report)]) + "\n"


def summary(report: Report) -> str:
    counts = ", ".join(f"{report.count(severity)} {severity.value}" for severity in Severity)
    parts = [f"{report.objects} objects in {report.files} files: {counts}"]
    if report.suppressed:
        parts.append(f"{len(report.suppressed)} ignored")
    if report.unjudged:
        parts.append(f"{report.unjudged} documents not judged")
    if report.foreign:
        parts.append(f"{report.foreign} that are no Kubernetes objects")
    return "; ".join(parts)


def _block(finding: Finding) -> str:
    lines = [f"{_place(finding)}: {finding.severity.value}: {printable(finding.message)} [{finding.rule}]"]
    lines += _snippet(finding)
    if finding.basis:
        lines.append(f"    {finding.basis}")
    lines.append(f"    fix: {printable(finding.fix)}")
    return "\n".join(lines) + "\n"


def _place(finding: Finding) -> str:
    """Never `::` at the beginning of a line, which GitHub's runner would take for a command."""
    place = printable(finding.place, 4_096)
    return f"./{place}" if place.lstrip().startswith("::") else place


def _snippet(finding: Finding) -> list[str]:
    lines, mark = _lines(finding.file), finding.mark
    if not 0 < mark.line <= len(lines) or mark.column > WIDTH:
        return []
    # One character for one, so that the carets stay below what they mean.
    line = "".join(c if c.isprintable() else " " for c in lines[mark.line - 1][:WIDTH]).replace("##[", "#_[")
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
    body = {
        "schema": "holdfast.lint/1",
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


def github(report: Report) -> str:
    """Workflow commands: GitHub shows them at the line of the pull request."""
    return "".join(_command(finding) + "\n" for finding in report.active)


def _command(finding: Finding) -> str:
    mark = finding.mark
    where = f"file={_property(printable(finding.file, 4_096))},line={mark.line},col={mark.column},endColumn={mark.end}"
    basis = f"\n{finding.basis}" if finding.basis else ""
    text = f"{printable(finding.message)}{basis}\nfix: {printable(finding.fix)}"
    return f"::{_LEVEL.get(finding.severity, 'notice')} {where},title={finding.rule}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def markdown(report: Report) -> str:
    body, rows = f"### Manifests\n\n{summary(report)}\n\n", [_row(finding) for finding in report.active]
    if not rows:
        return body
    body += "| place | rule | finding | fix |\n|---|---|---|---|\n"
    for index, row in enumerate(rows):
        if len(body) + len(row) > MAX_MARKDOWN:
            return f"{body}\n{len(rows) - index} more findings are left out here.\n"
        body += row
    return body


def _row(finding: Finding) -> str:
    basis = f" ({finding.basis})" if finding.basis else ""
    cells = (finding.place, f"{finding.severity.value} {finding.rule}", finding.message + basis, finding.fix)
    return "| " + " | ".join(map(_shown, cells)) + " |\n"


def _shown(text: str) -> str:
    """As it is: no markup, no link, no mention."""
    return "".join(f"&#{ord(c)};" if c in _MARKUP else c for c in printable(text, 1_000))


def sarif(report: Report) -> str:
    """SARIF 2.1.0, for code scanning. Suppressed findings are there too, marked as such."""
    driver = {"name": "holdfast-lint", "version": "0.1.0", "rules": [_rule(rule) for rule in all_rules().values()]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding) for finding in report.findings],
    }
    return (
        json.dumps(
            {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}, indent=2
        )
        + "\n"
    )


def _rule(rule: Rule) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": rule.id,
        "name": rule.slug,
        "shortDescription": {"text": rule.what},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why}\nFix: {rule.fix}\nSource: {rule.source}"},
        "defaultConfiguration": {"level": _LEVEL.get(rule.severity, "note")},
    }
    if rule.source.startswith("https://"):
        described["helpUri"] = rule.source.partition(" ")[0]
    return described


def _result(finding: Finding) -> dict[str, Any]:
    mark = finding.mark
    basis = f" {finding.basis}." if finding.basis else ""
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": _LEVEL.get(finding.severity, "note"),
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


FORMATS: dict[str, Callable[[Report], str]] = {
    "text": text, "json": as_json, "sarif": sarif, "github": github, "markdown": markdown,
}  # fmt: skip
