"""`holdfast train|batch|serve|checkpoints`. Commands import what they need when they run."""

import typer

from holdfast.checkpoint.cli import app as checkpoints
from holdfast.contract.exit_codes import EXIT_CODES_HELP
from holdfast.inference.cli import app as batch
from holdfast.inference.server.cli import app as serve
from holdfast.training.cli import app as train

app = typer.Typer(
    name="holdfast",
    help="What runs in pods: training, batch and online inference, and a look at checkpoints.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes around the help would take as long as all the rest of it
)
app.add_typer(train, name="train")
app.add_typer(batch, name="batch")
app.add_typer(serve, name="serve")
app.add_typer(checkpoints, name="checkpoints")
