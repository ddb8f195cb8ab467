"""For people: place, message, the line with a caret, the fact it was judged by, the fix."""

from functools import cache
from pathlib import Path

from holdfast.contract.printable import printable
from holdfast.lint.document import load_text
from holdfast.lint.engine import Report
from holdfast.lint.finding import Finding, Severity

WIDTH = 160  # of a quoted line


def render(report: Report) -> str:
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
