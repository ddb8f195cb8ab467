"""Runs every command, and reports Typer's errors in the same four lines as the commands' own."""

import re
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from holdfast.support.errors import InputError, run_cli
from holdfast.support.extras import explain_missing_package
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT, EXIT_CODES_HELP, EXIT_STOPPED

# Control characters except those of text, bytes that are not UTF-8, and marks that turn the
# direction of writing: they would control the terminal or hide what a command is about to do.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
)


_WHOLE = 10_000  # characters: Typer cuts the sentence of a command to the rest of one line


class CommandGroup(TyperGroup):
    """Lists commands by panel, each with its whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        width = 0
        for name in self.list_commands(ctx):
            command = self.commands[name]
            if not command.hidden:
                panel = getattr(command, "rich_help_panel", None) or "Commands"
                row = (name, command.get_short_help_str(_WHOLE))
                panels.setdefault(panel, []).append(row)
                width = max(width, len(name))
        for panel, rows in panels.items():
            with formatter.section(panel):
                # The same column in each panel.
                formatter.write_dl([(name.ljust(width), text) for name, text in rows])


def new_app(what: str) -> typer.Typer:
    """Makes a command line of several commands, plain and quick to show its help."""
    return typer.Typer(
        cls=CommandGroup,
        help=what,
        epilog=EXIT_CODES_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # boxes around the help would double its time
        add_completion=False,
    )


def run_app(app: typer.Typer, words: Sequence[str] | None = None) -> None:
    """Runs a command line, by default that of the process, to its exit code."""
    run_cli(lambda: _run(app, words))


def _run(app: typer.Typer, words: Sequence[str] | None) -> None:
    arguments = sys.argv[1:] if words is None else words
    _require_text(arguments)
    try:
        code = app(words, standalone_mode=False)
    except typer.Abort:
        print("stopped: no answer", file=sys.stderr)
        sys.exit(EXIT_STOPPED)
    except typer.TyperException as error:
        raise _make_usage_error(error) from None
    except ImportError as error:
        missing_extra = explain_missing_package(error, arguments)
        if missing_extra:
            raise missing_extra from None
        raise
    except SystemExit as end:
        # Typer exits with 1 if the reader closes the pipe, but 1 means findings here.
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        raise
    if isinstance(code, int) and code:
        sys.exit(code)


def _require_text(words: Sequence[str]) -> None:
    for word in words:
        if _UNPRINTABLE.search(word):
            raise InputError(
                "an argument is not valid text",
                got=word.encode("unicode_escape").decode()[:200],
                allowed="UTF-8 without control characters",
                fix="type the argument again",
            )


def _make_usage_error(error: typer.TyperException) -> InputError:
    context = getattr(error, "ctx", None)
    message = error.format_message()
    # Without any command, the list of commands is the best answer.
    if context is None or message == context.get_help():
        print(message, file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    usage = context.get_usage().removeprefix("Usage: ")
    return InputError(
        "the command line cannot be read",
        got=message,
        allowed=usage,
        fix=f"{context.command_path} --help",
    )
