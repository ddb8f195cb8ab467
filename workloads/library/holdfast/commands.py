"""The command line: `holdfast VERB` and `holdfast AREA VERB`.

Commands import what they need when they run, so that --help is quick.
"""

from typing import Annotated

import typer

from holdfast.checkpoint.cli import app as checkpoints
from holdfast.drill.cli import demo, drill
from holdfast.exporter.command import export
from holdfast.inference.cli import app as batch
from holdfast.inference.server.cli import app as serve
from holdfast.job_commands.cli import explain, new_job, submit, try_
from holdfast.job_commands.control.cli import list_, logs, resume, shell, stop
from holdfast.job_commands.lint import lint
from holdfast.job_commands.place import placement
from holdfast.mover.command import move
from holdfast.report.command import report
from holdfast.services.cli import new_service
from holdfast.support.command_line import CommandGroup
from holdfast.support.distribution import describe_version
from holdfast.support.examples import examples
from holdfast.training.cli import app as train
from holdfast.vocabulary.exit_codes import EXIT_CODES_HELP

app = typer.Typer(
    cls=CommandGroup,
    name="holdfast",
    help="Train, run batches, serve and start jobs on preemptible capacity.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes around the help would double the time of --help
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        print(describe_version())
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=_show_version,
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
) -> None:
    """Train, run batches, serve and start jobs on preemptible capacity."""


def command(panel: str, name: str, body: object, *lines: str, hidden: bool = False) -> None:
    """Adds a command with example lines to a panel of the help text."""
    add = app.command(name, epilog=examples(*lines), rich_help_panel=panel, hidden=hidden)
    add(body)  # pyright: ignore[reportArgumentType, reportCallIssue]


RUN = "Run"
LOOK = "Look"
CHECK = "Check"
OPERATE = "Operate"

command(
    RUN,
    "new-job",
    new_job,
    "holdfast new-job my-run --image trainer --gpus 8xa100 -- python train.py --steps 1000",
)
command(
    RUN,
    "new-service",
    new_service,
    "holdfast new-service chat --model gs://my-bucket/llama --gpu 1xl4 --base 1",
    "holdfast new-service scores --predictor entropy --set promised_per_s=80 --set"
    " replica_per_s=50",
)
command(RUN, "try", try_, "holdfast try", "holdfast try --evict")
command(
    RUN,
    "submit",
    submit,
    "holdfast submit my-run.yaml --dry-run",
    "holdfast submit my-run.yaml --max-usd-per-hour 30",
)
command(LOOK, "list", list_, "holdfast list", "holdfast list -n training -o json")
command(
    LOOK,
    "explain",
    explain,
    "holdfast explain my-run",
    "holdfast explain my-run --follow --events out/events",
)
command(
    LOOK,
    "logs",
    logs,
    "holdfast logs my-run --follow",
    "holdfast logs my-run --index 3 --previous",
)
command(
    LOOK,
    "report",
    report,
    "holdfast report --events out/demo/events --out out/report.html",
    "holdfast report --receipts receipts/2026/11 --platform platform.json",
)
command(
    CHECK,
    "lint",
    lint,
    "holdfast lint manifests",
    "holdfast lint my-run.yaml --platform platform.json --json",
    "holdfast lint - < manifest.yaml",
    "holdfast lint --rule HF101",
)
app.add_typer(
    placement,
    name="place",
    rich_help_panel=CHECK,
    epilog=examples(
        "holdfast place",
        "holdfast place --gpu a100 --hours 40h --gpus 8 --deadline 72h",
        "holdfast place --job train.yaml --json",
        "holdfast place prices",
    ),
)
command(CHECK, "demo", demo, "holdfast demo", "holdfast demo --part checkpoint")
command(OPERATE, "stop", stop, "holdfast stop my-run", "holdfast stop my-run --now --yes")
command(OPERATE, "resume", resume, "holdfast resume my-run")
command(
    OPERATE,
    "shell",
    shell,
    "holdfast shell my-run",
    "holdfast shell my-run --index 1 -- nvidia-smi",
)
command(
    OPERATE,
    "drill",
    drill,
    "holdfast drill --list",
    "holdfast drill --target local",
    "holdfast drill --target cluster --context staging --namespace team-research --selector"
    " app=train",
)
app.add_typer(train, name="train", rich_help_panel=RUN)
app.add_typer(batch, name="batch", rich_help_panel=RUN)
app.add_typer(serve, name="serve", rich_help_panel=RUN)
app.add_typer(checkpoints, name="checkpoints", rich_help_panel=OPERATE)
# Processes that manifests start; users do not type them.
command(
    OPERATE,
    "export",
    export,
    "holdfast export --kubeconfig ~/.kube/config --port 9400",
    hidden=True,
)
command(
    OPERATE,
    "move",
    move,
    "holdfast move --kubeconfig ~/.kube/config --project my-project --cluster holdfast-dev",
    hidden=True,
)
