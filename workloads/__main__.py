"""The command `python -m workloads AREA VERB [OBJECT]`. Commands import what they need when they run."""

import typer

from holdfast.contract.errors import run_cli
from holdfast.contract.exit_codes import EXIT_CODES_HELP
from workloads.drill.cli import demo, drill
from workloads.images.cli import app as images
from workloads.jobs.cli import explain, follow, list_jobs, submit
from workloads.jobs.own.cli import new_job, try_
from workloads.manifests.cli import lint, render, rules
from workloads.operators.cli import app as operators
from workloads.operators.platform_cli import apply

app = typer.Typer(
    help="Jobs, manifests and drills. What runs in pods has a command of its own: holdfast train|batch|checkpoints.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes around the help would take as long as all the rest of it
)
app.command("demo")(demo)
app.command("try")(try_)
app.command("new-job")(new_job)
app.command("submit")(submit)
app.command("list")(list_jobs)
app.command("explain")(explain)
app.command("follow")(follow)
app.add_typer(drill, name="drill")
app.add_typer(images, name="images")
app.add_typer(operators, name="operators")
app.command("apply")(apply)
app.command("render")(render)
app.command("lint")(lint)
app.command("rules")(rules)

if __name__ == "__main__":
    run_cli(app)
