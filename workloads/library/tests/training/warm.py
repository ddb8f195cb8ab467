"""Starts without the import of torch: the pod's first process is forked from this one, which has it already.

For many starts in little time: workloads.library.tests.bench.kill_lane and workloads.library.tests.bench.training. Only the interpreter's own start is
left out; agent, ranks, uploaders, signals and exit codes are those of `python -m holdfast train run`.
"""

import contextlib
import importlib
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from workloads.library.tests.fork_server import Forked, die_with
from workloads.library.tests.training.runs import Run

FAILED = 71  # no exit code of the module: the fork itself went wrong


class Fork(Forked):
    """A task in a child of this process."""

    def __init__(self, task: Callable[[], object]) -> None:
        assert threading.active_count() == 1, "a fork takes along one thread only"
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

    def code(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None


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
