"""The commands of the four programs, as Click's objects."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from typer.main import get_command

from holdfast.commands import app as holdfast
from infra.__main__ import app as infra
from monitoring.__main__ import app as monitoring
from workloads.__main__ import app as workloads

APPS = {
    "holdfast": holdfast,
    "infra": infra,
    "workloads": workloads,
    "monitoring": monitoring,
}
build = cache(get_command)


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield " ".join(path), command
        return
    if command.invoke_without_command:
        yield " ".join(path), command
    for name, subcommand in command.commands.items():
        yield from _walk(subcommand, (*path, name))


COMMANDS: dict[str, Any] = {}
for program, app in APPS.items():
    COMMANDS.update(_walk(build(app), (program,)))


def find_command(words: Sequence[str]) -> tuple[Any, list[str]]:
    """Return the command that the words begin with, and the words after its name. A subcommand
    comes before its group, as in `holdfast place`, which is a command too. Raises LookupError if
    there is none.
    """
    for depth in (3, 2, 1):
        command = COMMANDS.get(" ".join(words[:depth]))
        if command:
            return command, [*words[depth:]]
    raise LookupError(f"no command {' '.join(words[:3])}")


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Return parameter -> value. Raises Click's errors."""
    command, rest = find_command(words)
    return command.make_context(command.name, rest).params
