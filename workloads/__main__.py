"""The command `python -m workloads VERB`, for the platform team.

Bodies of commands import what they need, so that `--help` is quick.
"""

# First, because all imports below need what `make setup` installs.
from infra.contract import interpreter as interpreter

# isort: split
import sys

from holdfast.support.command_line import new_app, run_app
from holdfast.support.errors import InputError, run_cli
from holdfast.support.examples import examples
from workloads.images.cli import app as images
from workloads.manifests.cli import render
from workloads.operators.cli import apply_platform, doctor

# Verbs that moved to `holdfast` in 0.1; release 0.3 removes the hint.
MOVED = ("demo", "drill", "explain", "follow", "lint", "list", "new-job", "rules", "submit", "try")

app = new_app(
    "Manifests, images and operators of the platform. Jobs have a command of their own: holdfast."
)
app.add_typer(images, name="images")
app.command(
    "apply",
    epilog=examples(
        "python -m workloads apply example", "python -m workloads apply example --operators"
    ),
)(apply_platform)
app.command("doctor", epilog=examples("python -m workloads doctor example"))(doctor)
app.command(
    "render",
    epilog=examples("python -m workloads render", "python -m workloads render prod --check"),
)(render)


def main() -> None:
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb in MOVED:
        raise InputError(
            "this command moved",
            got=f"python -m workloads {verb}",
            allowed=f"holdfast {verb}",
            fix=f"holdfast {verb} --help",
        )
    run_app(app)


if __name__ == "__main__":
    run_cli(main)
