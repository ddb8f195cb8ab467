"""The command `lint`: paths in, report out, verdict back."""

import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from holdfast.lint import formats
from holdfast.lint.engine import Options, Report, lint
from holdfast.lint.finding import Severity
from holdfast.platform import Platform, read
from holdfast.support.errors import InputError
from holdfast.support.progress import working


def run(paths: Sequence[Path], platforms: Sequence[Path], *, as_json: bool) -> bool:
    """Whether there are errors or warnings."""
    documents = [read(path) for path in platforms]  # refused before anything is judged
    options = Options(platforms=documents, default=_of_the_cluster)
    with working("lint"):
        report = lint(paths, options)
    _refuse_nothing(report, paths)
    sys.stdout.write(formats.as_json(report) if as_json else formats.text(report))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        sys.stderr.write(formats.github(report))
    if as_json:
        sys.stderr.write(formats.summary(report) + "\n")
    return bool(report.count(Severity.ERROR) or report.count(Severity.WARNING))


@cache
def _of_the_cluster() -> Platform:
    """For files without a document near them."""
    from holdfast.clients.api import Api
    from holdfast.platform.cluster import choose

    return choose(Api(), None)


def _refuse_nothing(report: Report, paths: Sequence[Path]) -> None:
    """A check that looked at nothing must not pass."""
    if report.objects == 0 and all(f.severity is Severity.INFO for f in report.active):
        what = "no Kubernetes object was examined"
        got = (
            f"{report.files} files below {', '.join(map(str, paths))}, {report.unjudged} not judged"
        )
        fix = "name a folder with manifests; of a chart, the output of `helm template`"
        raise InputError(what, got=got, allowed="at least one", fix=fix)
