"""The door `python -m workloads AREA VERB [OBJECT]`. Commands import what they need when they run."""

import typer

from infra.contract.errors import EXIT_CODES_HELP, run_door
from workloads.checkpoint.cli import app as checkpoints
from workloads.drill.cli import demo, drill
from workloads.inference.cli import app as batch
from workloads.jobs.cli import explain, list_jobs, submit
from workloads.manifests.cli import lint, render, rules
from workloads.training.cli import app as train

app = typer.Typer(
    help="Training, batch inference, manifests and drills.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo)
app.command("submit")(submit)
app.command("list")(list_jobs)
app.command("explain")(explain)
app.add_typer(train, name="train")
app.add_typer(batch, name="batch")
app.add_typer(checkpoints, name="checkpoints")
app.add_typer(drill, name="drill")
app.command("render")(render)
app.command("lint")(lint)
app.command("rules")(rules)

if __name__ == "__main__":
    run_door(app)
