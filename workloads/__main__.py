"""The command `python -m workloads VERB`: the platform's half of the cluster. Bodies import what they need."""

from infra.contract import interpreter as interpreter  # first: all below needs what `make setup` installs

# isort: split
import typer

from holdfast.command_line import run_app
from holdfast.contract.examples import examples
from holdfast.contract.exit_codes import EXIT_CODES_HELP
from workloads.images.cli import app as images
from workloads.manifests.cli import render
from workloads.operators.cli import apply_platform, doctor

app = typer.Typer(
    help="Manifests, images and operators of the platform. Jobs have a command of their own: holdfast.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes around the help would take as long as all the rest of it
)
app.add_typer(images, name="images")
app.command(
    "apply", epilog=examples("python -m workloads apply example", "python -m workloads apply example --operators")
)(apply_platform)
app.command("doctor", epilog=examples("python -m workloads doctor example"))(doctor)
app.command("render", epilog=examples("python -m workloads render", "python -m workloads render prod --check"))(render)


if __name__ == "__main__":
    run_app(app)
