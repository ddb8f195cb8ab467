"""The command `lint`: configuration in, reports out, verdict back."""

import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from holdfast.contract.errors import InputError
from holdfast.contract.progress import working
from holdfast.lint import config as settings
from holdfast.lint.engine import Options, Report, lint, suppress
from holdfast.lint.finding import Severity
from holdfast.lint.formats import FORMATS, github, summary
from holdfast.platform import Platform, read


@dataclass(frozen=True, kw_only=True)
class Request:
    paths: tuple[Path, ...]
    platforms: tuple[Path, ...]
    formats: tuple[str, ...]
    outputs: tuple[Path, ...]
    config: Path | None
    use_ignores: bool
    baseline: Path | None
    write_baseline: Path | None


def run(request: Request) -> bool:
    """Whether there are errors or warnings."""
    _check_formats(request)
    config = settings.read(request.config or settings.find(Path.cwd()))
    platforms = [read(path) for path in request.platforms or config.platforms]  # refused before anything is judged
    options = Options(
        platforms=platforms, default=_of_the_cluster, ignores=config.ignores, use_ignores=request.use_ignores
    )
    with working("lint"):
        report = lint(request.paths, options)
    _refuse_nothing(report, request)
    if request.baseline:
        suppress(report, settings.read_baseline(request.baseline), f"in the baseline {request.baseline}")
    if request.write_baseline:
        settings.write_baseline(request.write_baseline, report.active)
    _write(report, request)
    return bool(report.count(Severity.ERROR) or report.count(Severity.WARNING))


@cache
def _of_the_cluster() -> Platform:
    """For files without a document near them."""
    from holdfast.clients.api import Api
    from holdfast.platform.cluster import choose

    return choose(Api(), None)


def _check_formats(request: Request) -> None:
    for name in request.formats:
        if name not in FORMATS:
            raise InputError("unknown format", got=name, allowed=", ".join(FORMATS), fix="choose one")
    if len(request.outputs) > len(request.formats) or len(request.formats) - len(request.outputs) > 1:
        got = f"{len(request.formats)} formats, {len(request.outputs)} outputs"
        raise InputError("--output", got=got, allowed="one for each --format, or all but the last", fix="pair them")


def _refuse_nothing(report: Report, request: Request) -> None:
    """A check that looked at nothing must not pass."""
    if report.objects == 0 and not report.active:
        what = "no Kubernetes object was examined"
        got = f"{report.files} files below {', '.join(map(str, request.paths))}, {report.unjudged} not judged"
        raise InputError(what, got=got, allowed="at least one", fix="name a folder with manifests")
    if report.objects == 0 and all(f.severity is Severity.INFO for f in report.active):
        got = f"{report.unjudged} templates"
        raise InputError("nothing but templates", got=got, allowed="rendered YAML", fix="lint `helm template`'s output")


def _write(report: Report, request: Request) -> None:
    for index, name in enumerate(request.formats):
        text = FORMATS[name](report)
        if index < len(request.outputs):
            request.outputs[index].write_text(text, encoding="utf-8")
        else:
            sys.stdout.write(text)
    if os.environ.get("GITHUB_ACTIONS") == "true" and "github" not in request.formats:
        sys.stderr.write(github(report))
    if request.formats != ("text",):
        sys.stderr.write(summary(report) + "\n")
