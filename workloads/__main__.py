"""The command `python -m workloads AREA VERB [OBJECT]`. Commands import what they need when they run."""

from infra.contract import interpreter as interpreter  # first: all below needs what `make setup` installs

# isort: split
import typer

from holdfast.command_line import run_app
from holdfast.contract.examples import examples
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
app.command("demo", epilog=examples("python -m workloads demo", "python -m workloads demo --out out/demo --seed 8"))(
    demo
)
app.command("try", epilog=examples("python -m workloads try example", "python -m workloads try example --evict"))(try_)
app.command(
    "new-job",
    epilog=examples(
        "python -m workloads new-job my-run --env example --image trainer --gpus 8xa100 -- python train.py --steps 1000"
    ),
)(new_job)
app.command(
    "submit",
    epilog=examples(
        "python -m workloads submit my-run.yaml --dry-run",
        "python -m workloads submit my-run.yaml --max-usd-per-hour 30",
    ),
)(submit)
app.command("list", epilog=examples("python -m workloads list --env example"))(list_jobs)
app.command("explain", epilog=examples("python -m workloads explain my-run --env example"))(explain)
app.command("follow", epilog=examples("python -m workloads follow my-run --env example --events out/events"))(follow)
app.add_typer(drill, name="drill")
app.add_typer(images, name="images")
app.add_typer(operators, name="operators")
app.command("apply", epilog=examples("python -m workloads apply example"))(apply)
app.command("render", epilog=examples("python -m workloads render", "python -m workloads render prod --check"))(render)
app.command(
    "lint",
    epilog=examples(
        "python -m workloads lint workloads/rendered", "python -m workloads lint my-run.yaml --env prod --format github"
    ),
)(lint)
app.command("rules", epilog=examples("python -m workloads rules", "python -m workloads rules HF101"))(rules)

if __name__ == "__main__":
    run_app(app)
