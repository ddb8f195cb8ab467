"""Each command of the four programs, as Click has it."""

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
    for name, below in command.commands.items():
        yield from _walk(below, (*path, name))


COMMANDS: dict[str, Any] = {
    name: command for app in APPS for name, command in _walk(build(APPS[app]), (app,))
}


def named(words: Sequence[str]) -> tuple[Any, list[str]]:
    """The command that the words begin with, and the words after its name. Raises LookupError where
    none is so called.
    """
    for depth in range(1, 4):
        command = COMMANDS.get(" ".join(words[:depth]))
        if command:
            return command, [*words[depth:]]
    raise LookupError(f"no command {' '.join(words[:3])}")


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """Parameter -> value. Raises what Click refuses."""
    command, rest = named(words)
    return command.make_context(command.name, rest).params
