"""The command `place`, with `place prices` and `place churn`.

Imports are in the bodies, so that --help is quick.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.job_commands.options import Context, Form, Json, Output, PlatformFile
from holdfast.place.cli import churn, prices
from holdfast.support.command_line import CommandGroup
from holdfast.support.errors import InputError, Unjudged
from holdfast.support.examples import examples

if TYPE_CHECKING:
    from holdfast.place.job import JobOptions
    from holdfast.platform import Platform

placement = typer.Typer(
    cls=CommandGroup,
    help="Compare cost and finish time of a job on each capacity.",
    rich_markup_mode=None,
)
placement.command(
    "prices",
    epilog=examples("holdfast place prices", "holdfast place prices --refresh"),
)(prices)
placement.command(
    "churn",
    epilog=examples(
        "holdfast place churn --events events",
        "holdfast place churn --project my-project --since 30d --json",
    ),
)(churn)


@placement.callback(invoke_without_command=True)
def place(
    command: typer.Context,
    gpu: Annotated[
        str, typer.Option(help="l4, a100, a100-80, h100, h200, b200, or as nvidia-smi prints it.")
    ] = "",
    gpus: Annotated[int, typer.Option(help="Number of GPUs that work at the same time.")] = 1,
    hours: Annotated[
        str, typer.Option(help="Duration of undisturbed work on all GPUs: 40, 40h, 2d.")
    ] = "",
    deadline: Annotated[str, typer.Option(help="From now: 72h, 3d, none.")] = "none",
    nodes: Annotated[
        str, typer.Option(help="4..8: an elastic gang, which continues with fewer nodes.")
    ] = "",
    checkpoint: Annotated[
        str,
        typer.Option(
            help=(
                "Time for which one save blocks: 30s. none: cannot resume. queue: items of a batch."
            )
        ),
    ] = "30s",
    platform: PlatformFile = None,
    churn: Annotated[
        str,
        typer.Option(help="Preemptions per node-hour, or FILE of `holdfast place churn --json`."),
    ] = "",
    spot_wait: Annotated[
        str, typer.Option(help="Median wait for Spot: 2h. Default: the record.")
    ] = "",
    file: Annotated[
        Path | None, typer.Option("--job", help="Job file with GPUs, hours, deadline, platform.")
    ] = None,
    anywhere: Annotated[
        str,
        typer.Option(help="All that Google sells in these regions: all, or europe,us-east4."),
    ] = "",
    context: Context = "",
    as_json: Json = False,
    form: Output = Form.TEXT,
) -> None:
    """Compare cost and finish time of a job on each capacity of your platform, in three Spot
    scenarios, and recommend one.

    Without a job: which capacity suits which workload, and why.
    """
    from holdfast.place import output
    from holdfast.place.job import JobOptions

    if command.invoked_subcommand:
        return
    as_json = as_json or form is Form.JSON
    if not (gpu or hours or file):
        output.print_matrix(as_json=as_json)
        return
    options = JobOptions(
        gpu=gpu, gpus=gpus, hours=hours, deadline=deadline, nodes=nodes, checkpoint=checkpoint
    )
    _refuse_contradictions(options, file, anywhere, platform, context)
    if anywhere:
        region = "" if anywhere == "all" else anywhere
        _place_anywhere(options, file, region, churn, spot_wait, as_json=as_json)
    else:
        _place_on_platform(
            options,
            file,
            platform,
            context,
            churn,
            spot_wait,
            as_json=as_json,
        )


def _refuse_contradictions(
    options: "JobOptions",
    file: Path | None,
    anywhere: str,
    platform: Path | None,
    context: str,
) -> None:
    """Raise InputError if two options state the job, or two the machines."""
    if file and (options.gpu or options.hours or options.nodes):
        raise InputError(
            "--job and a question",
            got="both",
            allowed="one of them",
            fix="leave --gpu, --hours and --nodes out",
        )
    if anywhere and (platform or context):
        raise InputError(
            f"--anywhere and --{'platform' if platform else 'context'}",
            got="both",
            allowed="one of them: a platform has one region",
            fix="leave one of them out",
        )


def _place_anywhere(
    options: "JobOptions",
    file: Path | None,
    region: str,
    churn: str,
    spot_wait: str,
    *,
    as_json: bool,
) -> None:
    from holdfast.place import job, output, recommendation
    from holdfast.support.progress import working

    if file:
        from holdfast.jobs.file import file_text  # only here: it takes YAML readers

        job_of_file = file_text.read_question(file)
        if len(job_of_file.gpu_choices) > 1:
            raise InputError(
                "--anywhere and a job that takes any of several GPUs",
                got=job_of_file.gpus,
                allowed="one kind of GPU",
                fix="leave --anywhere out, or name one GPU",
            )
        question = file_text.make_question(job_of_file)
    else:
        question = job.parse_job(options)
    spot_wait_h = job.parse_duration(spot_wait, "Spot wait") if spot_wait else None
    world = recommendation.make_world(question, churn, spot_wait_h)
    with working("price every capacity"):
        answer = recommendation.answer(question, world, region)
    output.print_answer(question, answer, as_json=as_json)


def _place_on_platform(
    options: "JobOptions",
    file: Path | None,
    document: Path | None,
    context: str,
    churn: str,
    spot_wait: str,
    *,
    as_json: bool,
) -> None:
    from holdfast.clients import capacity_advice
    from holdfast.cost import prices
    from holdfast.jobs.file import file_text
    from holdfast.jobs.plan import question
    from holdfast.support.progress import working

    beliefs = question.read_beliefs(options, churn, spot_wait)
    # A mistake in the file is reported without a cluster.
    job = file_text.read_question(file) if file else None
    platform = _find_platform(document, file, context)
    with working("price every capacity"):
        if job is not None:
            placed = question.place(job, platform, prices.load(), beliefs)
        else:
            job, placed = question.place_job(options, platform, prices.load(), beliefs)
    with working("ask Google how obtainable the machines are"):
        answers = question.ask_now(job, placed, platform, capacity_advice.ask)
    question.print_placement(
        job,
        placed,
        platform,
        is_question=file is None,
        as_json=as_json,
        answers=answers,
    )
    warning = question.describe_beliefs(beliefs)
    if warning:
        print(warning, file=sys.stderr)


def _find_platform(document: Path | None, file: Path | None, context: str) -> "Platform":
    """Return the platform of a document, of the file's folder, or of the cluster.

    With `context` the document must be that of its cluster.
    """
    from holdfast.clients.api import Api
    from holdfast.platform.cluster import choose, find_nearest
    from holdfast.support.progress import working

    folder = file.parent if file else None
    platform = None if context else find_nearest(document, folder)
    if platform is not None:
        return platform
    try:
        with working("ask the cluster"):
            return choose(Api(None, context), document, folder)
    except Unjudged as error:
        fix = f"{error.fix}; or --platform FILE; or --anywhere all, for what Google sells"
        raise Unjudged(error.what, got=error.got, fix=fix) from error
