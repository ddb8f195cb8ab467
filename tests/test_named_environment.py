"""What may touch a cloud or a cluster takes no environment for granted, and each command says which kind it is."""

import contextlib
import io
from typing import Any

import pytest

from holdfast.command_line import run_app
from infra.environments import names
from tests.test_options import APPS, COMMANDS

# Whose environment may stand by default: they read this checkout, and reach nothing.
LOCAL = {"infra check", "workloads render"}
# Which have none: what they read or reach is said by a name of its own, or is this machine.
WITHOUT = {
    "infra new",
    "monitoring",
    "holdfast",
}


def environment_of(name: str) -> Any:
    return next((p for p in COMMANDS[name].params if p.name in ("env", "environment")), None)


TAKES = [name for name in COMMANDS if environment_of(name) is not None]
NAMED = [name for name in TAKES if name not in LOCAL]


def test_every_command_says_whether_it_takes_an_environment() -> None:
    assert set(TAKES) >= LOCAL
    unlisted = [
        name for name in COMMANDS if name not in TAKES and not any(f"{name} ".startswith(f"{n} ") for n in WITHOUT)
    ]
    assert not unlisted, "a new command takes an environment, or stands in WITHOUT"
    assert not [entry for entry in WITHOUT if not any(f"{name} ".startswith(f"{entry} ") for name in COMMANDS)]


def test_the_commands_that_reach_a_cloud_or_a_cluster_are_among_them() -> None:
    assert {"infra deploy", "infra destroy", "workloads apply", "workloads doctor"} <= set(NAMED)


@pytest.mark.parametrize("name", NAMED)
def test_no_environment_is_taken_for_granted(name: str) -> None:
    assert environment_of(name).default in (None, "") or environment_of(name).required


@pytest.mark.parametrize("name", NAMED)
def test_its_examples_name_one(name: str) -> None:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        run_app(APPS[name.split()[0]], [*name.split()[1:], "--help"])
    lines = [line for line in shown.getvalue().splitlines() if line.lstrip().startswith(f"python -m {name} ")]
    assert lines and all(any(each in line.split() for each in names()) for line in lines), lines
