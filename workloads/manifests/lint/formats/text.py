"""For people: place, message, the line with a caret, the fact it was judged by, the fix."""

from functools import cache
from pathlib import Path

from workloads.manifests.lint.engine import Report
from workloads.manifests.lint.finding import Finding, Severity

WIDTH = 160  # of a quoted line


def render(report: Report) -> str:
    blocks = [_block(finding) for finding in report.active]
    blocks += [f"{f.place}: ignored [{f.rule}] {f.message}: {f.suppressed}\n" for f in report.suppressed]
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
    lines = [f"{finding.place}: {finding.severity.value}: {finding.message} [{finding.rule}]"]
    lines += _snippet(finding)
    if finding.basis:
        lines.append(f"    {finding.basis}")
    lines.append(f"    fix: {finding.fix}")
    return "\n".join(lines) + "\n"


def _snippet(finding: Finding) -> list[str]:
    lines, mark = _lines(finding.file), finding.mark
    if not 0 < mark.line <= len(lines) or mark.column > WIDTH:
        return []
    line = lines[mark.line - 1][:WIDTH].replace("\t", " ")
    carets = "^" * max(1, min(mark.end, len(line) + 1) - mark.column)
    number = str(mark.line)
    return [f"  {number} | {line}", f"  {' ' * len(number)} | {' ' * (mark.column - 1)}{carets}"]


@cache
def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
