"""Starts without the import of torch: the pod's first process is forked from this one, which has it already.

For many starts in little time: workloads.library.tests.bench.kill_lane and workloads.library.tests.bench.training. Only the interpreter's own start is
left out; agent, ranks, uploaders, signals and exit codes are those of `python -m holdfast train run`.
"""

import contextlib
import importlib
import os
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from workloads.library.tests.fork_server import die_with
from workloads.library.tests.training.runs import Run

FAILED = 71  # no exit code of the module: the fork itself went wrong


class Fork:
    """A task in a child of this process, with what Run asks of a subprocess.Popen."""

    def __init__(self, task: Callable[[], object]) -> None:
        assert threading.active_count() == 1, "a fork takes along one thread only"
        self.returncode: int | None = None
        parent, self.pid = os.getpid(), os.fork()
        if not self.pid:
            try:
                die_with(parent)
                task()
                os._exit(0)
            except Exception:  # noqa: BLE001  # the child's top level
                traceback.print_exc()
            finally:
                os._exit(FAILED)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.005)
        return code

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)


def prepare() -> None:
    """Import once what every start would."""
    for name in ("holdfast.training.launch", "holdfast.runtime.deadline"):
        importlib.import_module(name)


@dataclass(kw_only=True)
class WarmRun(Run):
    @contextlib.contextmanager
    def started(self) -> Iterator[Any]:
        self.folder.mkdir(parents=True, exist_ok=True)
        process = Fork(self._command)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.send_signal(signal.SIGKILL)  # when it never came to have a group of its own
            process.wait()

    def _command(self) -> None:
        """Never returns: a session, a log and arguments of its own, then `train run` to its exit code."""
        from holdfast.training.cli import app

        os.setsid()
        log = os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.environ.update(self.env)
        app(self.command()[4:])
