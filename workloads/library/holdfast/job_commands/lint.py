"""The command `holdfast lint`, of manifests and of job and service files, which are judged as
`submit` sends them.

Bodies import: `--help` must not wait for what only a run needs.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.job_commands.options import Context, Form, Output
from holdfast.vocabulary.exit_codes import EXIT_FINDINGS

if TYPE_CHECKING:
    from holdfast.platform import Platform

_NEAREST = "platform.json, repeatable; else the nearest one, or that of the cluster."
Platforms = Annotated[list[Path] | None, typer.Option(help=_NEAREST)]


def lint(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Manifests, job and service files, folders of them; - is standard input."
        ),
    ] = None,
    platform: Platforms = None,
    rule: Annotated[
        str, typer.Option(help="Only print what a rule finds, why, and the fix: HF101, or all.")
    ] = "",
    context: Context = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of text.")
    ] = False,
    output: Output = Form.TEXT,
) -> None:
    """Check manifests, job and service files against the platform.

    Exit 1: errors or warnings; 2: no manifests.
    """
    from holdfast.lint import rule_pages, run
    from holdfast.support.errors import InputError

    as_json = as_json or output is Form.JSON
    if rule:
        page = rule_pages.show("" if rule == "all" else rule, as_json=as_json)
        sys.stdout.write(page)
        return
    if not paths:
        raise InputError(
            "no files to lint",
            got="no path",
            allowed="files, folders, - for standard input, or --rule",
            fix="holdfast lint FOLDER",
        )
    if run.run(
        paths,
        platform or (),
        render_job,
        as_json=as_json,
        context=context,
    ):
        raise typer.Exit(EXIT_FINDINGS)


def render_job(document: Any, source: str, platform: "Platform") -> str:
    """Return the manifest of a job or service file; the images need not be pushed yet.

    Raises InputError if the file is wrong, or if the platform has no capacity for it.
    """
    from holdfast.support.distribution import install_command
    from holdfast.support.errors import InputError

    try:
        from holdfast.jobs.file import file_text
        from holdfast.jobs.submit import prepared_job
        from holdfast.services import prepared_service
        from holdfast.services.file import file_text as service_text
    except ModuleNotFoundError as error:
        raise InputError(
            "a job or service file cannot be judged by this installation",
            got=f"{source}, and no package {error.name}",
            allowed="manifests, or the extra jobs",
            fix=install_command("jobs"),
        ) from error
    if service_text.is_service(document):
        return prepared_service.render(service_text.parse(document, source), platform)
    job = file_text.parse(document, source)
    if job.source and not (Path(source).parent / job.source).is_dir():
        raise InputError(
            "source",
            got=job.source,
            allowed="a folder, from that of the job file",
            fix="correct the path, or leave source out: the image has the code",
        )
    return prepared_job.render(job, platform)
