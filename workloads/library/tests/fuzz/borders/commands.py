"""Command lines. Only of commands that read: nothing here starts, sends or deletes."""

import contextlib
import io
import json
import random
import tempfile
from typing import Any

import typer
from typer.main import get_command

from holdfast.commands import app as holdfast
from holdfast.commands import app as monitoring
from holdfast.commands import app as workloads
from holdfast.contract.errors import InputError, Unjudged, unusable_path
from workloads.library.tests.fuzz.campaign import Border
from workloads.library.tests.fuzz.mutations import ODD, dumped

COMMANDS: tuple[tuple[typer.Typer, tuple[str, ...]], ...] = (
    (holdfast, ("checkpoints", "list")),
    (workloads, ("lint",)),
    (monitoring, ("report",)),
    (monitoring, ("receipt",)),
    (monitoring, ("churn",)),
)
# A hostile value is a path too: none is given to what writes a file, and none to what would ask a cloud or a cluster.
NEVER = {"out", "output", "write_baseline", "annotate", "project", "kubeconfig", "history"}


def _make_words(draw: random.Random) -> bytes:
    app, path = draw.choice(COMMANDS)
    command: Any = get_command(app)
    found: list[str] = []
    for name in path:
        command = command.commands[name]
        found.append(name)
    chosen = [parameter for parameter in command.params if parameter.name not in NEVER]
    for parameter in draw.sample(chosen, min(len(chosen), draw.randrange(5))):
        if parameter.param_type_name == "option":
            found.append(parameter.opts[0])
        if not getattr(parameter, "is_flag", False):
            found.append(str(draw.choice(ODD[:-1]))[:3_000])
    return dumped([COMMANDS.index((app, path)), found])


def _enter_words(data: bytes) -> None:
    which, words = json.loads(data)
    words = [word.replace("\x00", "") for word in words]
    written = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.enter_context(contextlib.redirect_stdout(written))
        stack.enter_context(contextlib.redirect_stderr(written))
        try:
            COMMANDS[which][0](words)
        except OSError as error:
            raise unusable_path(error) or error from None


BORDERS = {
    # Click ends every command by SystemExit, with the code of what it found.
    "command lines": Border(make=_make_words, enter=_enter_words, refusals=(InputError, Unjudged, SystemExit)),
}
