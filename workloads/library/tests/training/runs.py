"""Real training runs of this machine: start one, wait for a step, take it down, read its output."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from holdfast.support.object_names import parse_step
from tests.support import commits
from workloads.library.tests.fork_server import ForkServer, die_with
from workloads.library.tests.processes import until
from workloads.library.tests.training.hooks import replace_function, waiting_before

PATIENCE_S = 180.0
STEPS = 40
COMMAND = ("-m", "holdfast", "train", "run")
SEED = "holdfast.training.trainer.data:mix_seed"
NAIVE = ("-m", "holdfast.drill.naive")

Event = dict[str, Any]


def run_server() -> contextlib.closing[ForkServer]:
    """Fork server for runs in which a start from nothing is not tested."""
    return contextlib.closing(
        ForkServer(
            ["holdfast.commands", "holdfast.training.trainer.launch", "holdfast.runtime.deadline"]
        )
    )


def launch_process(
    server: ForkServer | None,
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: IO[Any],
) -> Any:
    """Starts a process by `server`, or from nothing without one: a subprocess.Popen or like
    one, in a session of its own.
    """
    if server:
        return server.start(
            command,
            env=env,
            out=log,
            err=log,
            session=True,
        )
    options: dict[str, Any] = {
        "start_new_session": True,
        "preexec_fn": partial(die_with, os.getpid()),
    }
    return subprocess.Popen(
        command,
        env=env,
        stdout=log,
        stderr=log,
        text=True,
        **options,
    )


@dataclass(kw_only=True)
class Run:
    """One job in `folder`, over as many starts as the test gives it."""

    folder: Path
    steps: int = STEPS
    every: int = 10
    ranks: int = 2
    report_every: int = 1
    module: Sequence[str] = COMMAND
    options: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict)
    server: ForkServer | None = None
    """Fork server; without it each start is one from nothing."""

    @property
    def events_path(self) -> Path:
        return self.folder / "events.jsonl"

    def command(self) -> list[str]:
        command = [
            sys.executable,
            *self.module,
            "--checkpoints",
            str(self.folder / "checkpoints"),
            "--run",
            "job",
        ]
        command += [
            "--events-file",
            str(self.events_path),
            "--steps",
            str(self.steps),
            "--every",
            str(self.every),
        ]
        return [
            *command,
            "--ranks",
            str(self.ranks),
            "--set",
            f"report_every={self.report_every}",
            *self.options,
        ]

    @contextlib.contextmanager
    def started(self) -> Iterator[Any]:
        """Yields a new process of the run, a subprocess.Popen or like one, and cleans up."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = self.command()  # may add to the environment
        environment = {**os.environ, **self.env}
        with (self.folder / "log").open("a") as log:
            process = launch_process(self.server, command, env=environment, log=log)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def hold_before(self, step: int) -> None:
        """Makes further starts wait before that step for `release`, or for their notice.

        So a run that a test takes down is never over before that, however late the test acts.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._gate.unlink(missing_ok=True)
        code = waiting_before(step, self._gate)
        self.module = replace_function(self.folder / "held.py", SEED, code)

    def release(self) -> None:
        self._gate.touch()

    @property
    def _gate(self) -> Path:
        return self.folder / "gate"

    def complete(self) -> int:
        with self.started() as process:
            return process.wait(PATIENCE_S)

    def interrupt(self, at_step: int, take_down: Callable[[Any], object]) -> int:
        """Takes the run down, like `stop_when`, once `at_step` of this start is done."""
        begun = len(self.events())
        return self.stop_when(lambda: self.has_done(at_step, begun), take_down)

    def stop_when(self, ready: Callable[[], object], take_down: Callable[[Any], object]) -> int:
        """Starts, waits until `ready`, takes down, and returns the exit code of a shell."""
        with self.started() as process:
            self.wait_until(process, ready)
            take_down(process)
            code = process.wait(PATIENCE_S)
        return 128 - code if code < 0 else code

    def wait_for_step(self, process: Any, step: int) -> None:
        self.wait_until(process, lambda: self.has_done(step))

    def wait_until(self, process: Any, ready: Callable[[], object]) -> None:
        until(
            ready,
            self.log,
            alive=lambda: process.poll() is None,
            within_s=PATIENCE_S,
        )

    def has_done(self, step: int, begun: int = 0) -> bool:
        """Returns whether the step is done, by the events from number `begun` on."""
        return any(e["event"] == "window" and e["last_step"] >= step for e in self.events()[begun:])

    def has_committed(self, step: int) -> bool:
        """Returns whether the checkpoint of that step, or a later one, is in the store."""
        folders = [commit.parent.name for commit in commits(self.folder / "checkpoints")]
        return any(parse_step(folder) >= step for folder in folders)

    def events(self) -> list[Event]:
        if not self.events_path.exists():
            return []
        whole = self.events_path.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def of(self, word: str) -> list[Event]:
        return [event for event in self.events() if event["event"] == word]

    def losses(self) -> dict[int, float]:
        """Returns the loss by step; a step done twice must have had the same loss twice."""
        curve: dict[int, float] = {}
        for event in self.of("window"):
            assert event["first_step"] == event["last_step"]
            assert curve.setdefault(event["last_step"], event["loss"]) == event["loss"], event
        return curve

    @property
    def digest(self) -> str:
        return self.of("exit")[-1]["digest"]

    def log(self) -> str:
        return (self.folder / "log").read_text()[-4000:]


def notice(process: subprocess.Popen[str]) -> None:
    """Sends SIGTERM to the first process only, like the kubelet."""
    process.send_signal(signal.SIGTERM)


def power_loss(process: subprocess.Popen[str]) -> None:
    """Kills the first process and its ranks, which share its session until they leave it."""
    os.killpg(process.pid, signal.SIGKILL)
