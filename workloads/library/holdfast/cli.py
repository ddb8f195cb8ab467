"""The entry point of the command `holdfast`: the core can be installed without it."""

import sys

from holdfast.support.errors import InputError
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT


def main() -> None:
    try:
        from holdfast.commands import app
        from holdfast.support.command_line import run_app
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        error = InputError(
            "the command line is not installed",
            got="holdfast without extras, which has no command line",
            allowed="an extra: trainer, batch, server, jobs, lint, place, report or all",
            # Not by the bare name: an index may hold another package under it.
            fix=(
                "make setup in a clone of the platform; else pip install"
                " 'PATH/holdfast-VERSION-py3-none-any.whl[all]'"
            ),
        )
        print(error.lines(), file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    run_app(app)
