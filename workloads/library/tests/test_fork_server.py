"""Forked processes end, hear signals and own their resources like those started from nothing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from workloads.library.tests.fork_server import ForkServer, Started

pytestmark = pytest.mark.process

SCRIPT = """
import atexit, json, os, sys, time
atexit.register(print, "at the end")
own_session = os.getsid(0) == os.getpid()
preloaded = "json.tool" in sys.modules
print(own_session, os.environ.get("MINE"), sys.argv[1], __name__, preloaded, flush=True)
exec(sys.argv[1])
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer(["json.tool"])
    yield server
    server.close()


@pytest.fixture
def start(server: ForkServer, tmp_path: Path) -> Callable[[str], Started]:
    (tmp_path / "script.py").write_text(SCRIPT)

    def start_script(code: str) -> Started:
        with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
            command = [sys.executable, str(tmp_path / "script.py"), code]
            return server.start(
                command,
                env={"MINE": "yes"},
                out=out,
                err=err,
                session=True,
            )

    return start_script


@pytest.mark.parametrize(
    ("code", "exit_code", "shown"),
    [
        ("0", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('why')", 1, "why\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
    ],
)
def test_it_ends_as_python(
    start: Callable[[str], Started],
    tmp_path: Path,
    code: str,
    exit_code: int,
    shown: str,
) -> None:
    assert start(code).wait(60) == exit_code
    printed = (tmp_path / "out").read_text().splitlines()
    assert printed[0] == f"True yes {code} __main__ True"
    assert printed[1:] == ([] if exit_code < 0 else ["at the end"])
    assert (tmp_path / "err").read_text().endswith(shown)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has descriptors of processes")
def test_waiting_leaves_the_server_alone(
    server: ForkServer, start: Callable[[str], Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start("time.sleep(600)")
    orders = list[object]()
    ask = server.ask

    def record(order: dict[str, Any], *files: int) -> dict[str, Any]:
        orders.append(order)
        return ask(order, *files)

    monkeypatch.setattr(server, "ask", record)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    assert process.poll() is None
    assert orders == []
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    assert orders == [{"pid": process.pid}]


def test_a_signal_to_its_group_meets_it_from_the_first_moment_on(
    start: Callable[[str], Started],
) -> None:
    for _ in range(20):
        process = start("time.sleep(600)")
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


def test_it_ends_with_the_server(tmp_path: Path) -> None:
    server = ForkServer([])
    with (tmp_path / "log").open("w") as log:
        process = server.start(
            [sys.executable, "-m", "http.server", "0"],
            env={},
            out=log,
            err=log,
            session=True,
        )
    assert process.poll() is None
    server.close()
    until = time.monotonic() + 60
    while Path(f"/proc/{process.pid}").exists():
        assert time.monotonic() < until, "it outlives the server"
        time.sleep(0.01)


def test_server_imports_from_the_inherited_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inherited.py").touch()
    (tmp_path / "script.py").write_text("import inherited\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with closing(ForkServer(["inherited"])) as server, (tmp_path / "log").open("w") as log:
        started = server.start(
            [sys.executable, str(tmp_path / "script.py")],
            env={},
            out=log,
            err=log,
            session=True,
        )
        code = started.wait(60)
    assert code == 0, (tmp_path / "log").read_text()
