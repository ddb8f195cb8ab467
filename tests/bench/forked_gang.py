"""A framework's gang whose ranks are forked from a process that has imported torch and the frameworks already.

For many starts in little time. Left out are the interpreter's start and the imports; session, environment, signals,
loader workers and uploaders are those of a start from nothing.
"""

import multiprocessing as mp
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.workloads.library.training.frameworks.gang import ROOT, Gang
from tests.workloads.library.training.runs import die_with

CONTEXT = mp.get_context("forkserver")
IMPORTS = (
    "torch.optim.adamw",
    "transformers.trainer",
    "lightning.pytorch",
    "accelerate",
    "holdfast.checkpoint.checkpointer",
    "holdfast.training.frameworks.huggingface",
    "holdfast.training.frameworks.lightning",
    "holdfast.training.frameworks.accelerate",
)


def prepare(site: Path) -> None:
    """Once, before the first start. `site`: where the frameworks are installed."""
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{site}"  # the only path that a fork server takes along
    CONTEXT.set_forkserver_preload([*IMPORTS, __name__])


class ForkedGang(Gang):
    def _start(self, rank: int, port: int, env: Mapping[str, str]) -> Any:
        streams = [str(self._path(rank, stream)) for stream in ("out", "err")]
        for path in streams:
            Path(path).touch()
        environment = self._environment(rank, port) | dict(env)
        return Fork(CONTEXT.Process(target=_rank, args=(self._command[1:], environment, streams)))


class Fork:
    """With what Gang asks of a subprocess.Popen."""

    def __init__(self, process: Any) -> None:
        self._process = process
        process.start()
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return self.returncode


def _rank(command: list[str], environment: Mapping[str, str], streams: list[str]) -> None:
    os.setsid()
    die_with(os.getppid())
    for number, path in zip((1, 2), streams, strict=True):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.environ.update(environment)
    # As in a start from nothing: where the frameworks are found, and how loaders start their workers.
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    mp.set_start_method("fork", force=True)
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
