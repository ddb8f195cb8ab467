"""What may touch a cloud or a cluster takes no environment for granted, and each command says which kind it is."""

import contextlib
import io
import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest

from holdfast.command_line import run_app
from infra.environments import names
from tests.test_options import APPS, COMMANDS, JOB, SENSIBLE

# Whose environment may stand by default: they read this checkout, and reach nothing.
LOCAL = {"infra place", "infra upgrade-check", "workloads lint", "workloads render"}
# Which have none: what they read or reach is said by a name of its own, or is this machine.
WITHOUT = {
    "infra rules", "infra new", "infra matrix", "infra lock-provider", "infra prices",
    "workloads demo", "workloads images base", "workloads operators", "workloads rules", "workloads drill",
    "monitoring", "holdfast",
}  # fmt: skip


def environment_of(name: str) -> Any:
    return next((p for p in COMMANDS[name].params if p.name in ("env", "environment")), None)


TAKES = [name for name in COMMANDS if environment_of(name) is not None]
NAMED = [name for name in TAKES if name not in LOCAL]
OPTIONAL = [name for name in NAMED if not environment_of(name).required]


def test_every_command_says_whether_it_takes_an_environment() -> None:
    assert set(TAKES) >= LOCAL
    unlisted = [
        name for name in COMMANDS if name not in TAKES and not any(f"{name} ".startswith(f"{n} ") for n in WITHOUT)
    ]
    assert not unlisted, "a new command takes an environment, or stands in WITHOUT"
    assert not [entry for entry in WITHOUT if not any(f"{name} ".startswith(f"{entry} ") for name in COMMANDS)]


def test_the_commands_that_ask_a_cluster_are_among_them() -> None:
    assert {"infra deploy", "infra destroy", "workloads submit", "workloads list", "workloads try"} <= set(NAMED)
    assert {"workloads submit", "workloads list", "workloads explain", "workloads follow"} <= set(OPTIONAL)


@pytest.mark.parametrize("name", NAMED)
def test_no_environment_is_taken_for_granted(name: str) -> None:
    assert environment_of(name).default in (None, "") or environment_of(name).required


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a cluster, a cloud or a terminal: whoever asks one fails otherwise than by the environment."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("it asked before it knew whom")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("subprocess.Popen._execute_child", refuse)
    monkeypatch.setattr("holdfast.clients.api.Api.__init__", refuse)
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)


def refused(name: str, *more: str) -> str:
    required = [p for p in COMMANDS[name].params if p.required and p.name not in ("env", "environment")]
    assert all(p.param_type_name == "argument" for p in required)
    words = [*name.split()[1:], *more, *(SENSIBLE.get(p.name, "my-run") for p in required)]
    error = io.StringIO()
    with contextlib.redirect_stderr(error), pytest.raises(SystemExit) as end:
        run_app(APPS[name.split()[0]], words)
    assert end.value.code == 2, error.getvalue()
    return error.getvalue()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", OPTIONAL)
def test_without_one_it_names_those_that_there_are(name: str) -> None:
    allowed, fix = ", ".join(names()), "--env NAME"
    assert refused(name) == f"error:   no environment\n  got:     none named\n  allowed: {allowed}\n  fix:     {fix}\n"


@pytest.mark.usefixtures("alone")
def test_a_file_that_names_its_own_is_sent_to_no_other() -> None:
    Path("job.yaml").write_text(f"# holdfast: environment=prod\n{JOB}")
    message = refused("workloads submit", "--env", "dev")
    assert "got:     dev" in message and "allowed: prod, which job.yaml names" in message


@pytest.mark.parametrize("name", NAMED)
def test_its_examples_name_one(name: str) -> None:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        run_app(APPS[name.split()[0]], [*name.split()[1:], "--help"])
    lines = [line for line in shown.getvalue().splitlines() if line.lstrip().startswith(f"python -m {name} ")]
    own = name == "workloads submit"  # of a job of one's own, whose file names it
    assert lines and all(own or any(each in line.split() for each in names()) for line in lines), lines
