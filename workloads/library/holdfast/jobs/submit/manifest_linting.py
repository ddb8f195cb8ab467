"""Lints what `submit` sends of a manifest, before it is sent.

A job file needs none of this: what is rendered from it is linted as it is rendered.
"""

from collections.abc import Callable
from pathlib import Path

from holdfast.clients.api import Object
from holdfast.lint import ignores
from holdfast.lint.engine import Options, lint
from holdfast.lint.finding import Finding, Severity
from holdfast.lint.formats import format_finding
from holdfast.lint.settings import FILE, find_settings
from holdfast.platform import Platform
from holdfast.support.errors import InputError

# Findings that are printed; `lint` prints all of them.
MOST = 10


def require_no_errors(
    path: Path,
    documents: list[Object],
    platform: Platform,
    note: Callable[[str], None],
) -> None:
    """Print the errors and warnings of what is sent. Raises InputError if there is an error.

    The whole file is read, since its objects explain each other; findings about objects that are
    not sent are left out.
    """
    report = lint([path], Options(platforms=[platform], find_settings=find_settings))
    titles = {_title(document) for document in documents}
    findings: list[Finding] = []
    for finding in report.active:
        is_sent = not finding.object_name or finding.object_name in titles
        if is_sent and finding.severity is not Severity.INFO:
            findings.append(finding)
    for finding in findings[:MOST]:
        note(format_finding(finding))
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if not errors:
        return
    first = errors[0]
    raise InputError(
        f"the linter finds {len(errors)} errors in {path}; nothing was sent",
        got=f"{first.rule} in {first.object_name or path}: {first.message}",
        allowed="warnings, and errors that are accepted",
        fix=(
            f"{first.fix}; or accept it with the annotation"
            f" {ignores.ANNOTATION}{first.rule}: REASON, or in {FILE}"
        ),
    )


def _title(document: Object) -> str:
    metadata = document["metadata"]
    parts = (document["kind"], metadata.get("namespace"), metadata["name"])
    return "/".join(filter(None, parts))
