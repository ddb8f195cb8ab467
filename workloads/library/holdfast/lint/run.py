"""Runs the command `lint`: takes paths, prints the report and returns the verdict."""

import os
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from holdfast.lint import formats
from holdfast.lint.engine import Options, RenderJob, Report, lint
from holdfast.lint.finding import Severity
from holdfast.lint.settings import find_settings
from holdfast.platform import Platform, read
from holdfast.support.errors import InputError
from holdfast.support.progress import working


def run(
    paths: Sequence[Path],
    platforms: Sequence[Path],
    render: RenderJob | None = None,
    *,
    as_json: bool,
    context: str = "",
) -> bool:
    """Prints the report. Returns whether there are errors or warnings.

    render: makes the manifest of a job file. context: names the cluster in the kubeconfig.
    """
    # A document that cannot be read is rejected before anything is judged.
    documents = [read(path) for path in platforms]
    options = Options(
        platforms=documents,
        default=partial(_get_cluster_platform, context),
        render=render,
        find_settings=find_settings,
    )
    with working("lint"):
        report = lint(paths, options)
    _require_objects(report, paths)
    sys.stdout.write(formats.format_json(report) if as_json else formats.text(report))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        sys.stderr.write(formats.format_github(report))
    if as_json:
        sys.stderr.write(formats.summary(report) + "\n")
    return bool(report.count(Severity.ERROR) or report.count(Severity.WARNING))


@cache
def _get_cluster_platform(context: str) -> Platform:
    """Returns the platform of the cluster, for files without a document near them."""
    from holdfast.clients.api import Api
    from holdfast.platform.cluster import choose

    return choose(Api(None, context), None)


def _require_objects(report: Report, paths: Sequence[Path]) -> None:
    """Raises InputError if nothing was examined: such a check must not pass."""
    if report.objects or len(report.active) > report.count(Severity.INFO):
        return
    folders = ", ".join(map(str, paths))
    raise InputError(
        "no Kubernetes object was examined",
        got=f"{report.files} files below {folders}, {report.unjudged} not judged",
        allowed="at least one",
        fix="name a folder with manifests; of a chart, the output of `helm template`",
    )
