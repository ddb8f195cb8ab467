"""For a job summary or a comment on a pull request; kept under GitHub's limit."""

from holdfast.contract.printable import printable
from holdfast.lint.engine import Report
from holdfast.lint.finding import Finding
from holdfast.lint.formats.text import summary

MAX_CHARACTERS = 60_000
_MARKUP = frozenset("&<>`*[]|@\\")
HEAD = "| place | rule | finding | fix |\n|---|---|---|---|\n"


def render(report: Report) -> str:
    body, rows = f"### Manifests\n\n{summary(report)}\n\n", [_row(finding) for finding in report.active]
    if not rows:
        return body
    body += HEAD
    for index, row in enumerate(rows):
        if len(body) + len(row) > MAX_CHARACTERS:
            return f"{body}\n{len(rows) - index} more findings are left out here.\n"
        body += row
    return body


def _row(finding: Finding) -> str:
    basis = f" ({finding.basis})" if finding.basis else ""
    cells = (finding.place, f"{finding.severity.value} {finding.rule}", finding.message + basis, finding.fix)
    return "| " + " | ".join(map(_shown, cells)) + " |\n"


def _shown(text: str) -> str:
    """As it is: no markup, no link, and nobody mentioned."""
    return "".join(f"&#{ord(c)};" if c in _MARKUP else c for c in printable(text, 1_000))
