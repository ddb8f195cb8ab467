"""Workflow commands: GitHub shows them at the line of the pull request."""

from holdfast.contract.printable import printable
from holdfast.lint.engine import Report
from holdfast.lint.finding import Finding, Severity

_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render(report: Report) -> str:
    return "".join(_command(finding) + "\n" for finding in report.active)


def _command(finding: Finding) -> str:
    mark = finding.mark
    where = f"file={_property(printable(finding.file, 4_096))},line={mark.line},col={mark.column},endColumn={mark.end}"
    basis = f"\n{finding.basis}" if finding.basis else ""
    text = f"{printable(finding.message)}{basis}\nfix: {printable(finding.fix)}"
    return f"::{_LEVEL[finding.severity]} {where},title={finding.rule}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
