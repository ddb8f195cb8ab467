"""The entry point of the command `holdfast`, which also explains a missing command line.

The core can be installed without the packages of the command line.
"""

from holdfast.support.distribution import install_command, require_no_foreign_package
from holdfast.support.errors import InputError, run_cli


def main() -> None:
    run_cli(_run)


def _run() -> None:
    require_no_foreign_package()
    try:
        from holdfast.commands import app
        from holdfast.support.command_line import run_app
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        raise InputError(
            "the command line is not installed",
            got="holdfast without extras, which has no command line",
            allowed="one of demo, jobs, lint, place, report, drill, trainer, batch, server, all",
            fix=install_command("all"),
        ) from None
    run_app(app)
