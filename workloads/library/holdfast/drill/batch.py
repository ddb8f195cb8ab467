"""A batch run under evictions: workers are taken away and replaced until every item is stored."""

import json
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.contract.exit_codes import EXIT_COMPLETE, EXIT_KILLED, EXIT_PREEMPTED
from holdfast.contract.telemetry import KIND_BATCH
from holdfast.drill.events import Follower
from holdfast.drill.pods import Pod
from holdfast.drill.schedule import SIGKILL, Eviction
from holdfast.drill.training import completed
from holdfast.drill.waiting import POLL_S, DrillError, until
from holdfast.runtime.events import EventLog

_BATCH = (sys.executable, "-m", "holdfast", "batch")


@dataclass(kw_only=True)
class BatchRun:
    """One job over all its workers."""

    job: str
    items: int
    window_s: float
    folder: Path
    launch: Callable[[Path], Pod]
    log: Callable[[str], None]
    progress: Callable[[int], None]
    kills: int = 0
    exits: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = self.folder / "events" / f"{self.job}.jsonl"
        self.events = Follower(self.path)

    def run(self, workers: int, schedule: Sequence[Eviction]) -> None:
        """Start `workers`, evict by the schedule with a replacement for each, and wait until all are drained."""
        with EventLog.open(self.path, job=self.job, kind=KIND_BATCH) as log:
            pods = [self.launch(self._log(n)) for n in range(workers)]
            for eviction in schedule:
                self._until_stored(pods, eviction.at)
                time.sleep(eviction.delay_s)  # part of the schedule, not a wait for a condition
                self._evict(pods, eviction, log)
        self._until_drained(pods)

    def stored(self) -> int:
        """Rows that workers committed, by their own event lines: rows stored again count again."""
        return sum(event["items"] for event in self.events.of("stored"))

    def _log(self, worker: int) -> Path:
        return self.folder / "logs" / f"{self.job}-{worker}.log"

    def _until_stored(self, pods: Sequence[Pod], items: int) -> None:
        def watch() -> None:
            self._check(pods)
            if all(pod.exit_code == EXIT_COMPLETE for pod in pods):
                raise DrillError(
                    f"{self.job}: drained after {self.stored()} of {items} items, before the next eviction"
                )

        until(lambda: self.stored() >= items, events=self.events, watch=watch, tail=pods[0].tail)

    def _evict(self, pods: list[Pod], eviction: Eviction, log: EventLog) -> None:
        pod = pods[eviction.victim]
        log.emit("evict", signal=eviction.signal, target=f"pod-{pod.pid}")
        began = time.monotonic()
        code = pod.kill() if eviction.signal == SIGKILL else pod.preempt(self.window_s)
        self.kills += 1
        self.exits.append(code)
        self.log(
            f"{self.job}: {eviction.signal} to worker {eviction.victim} after {self.stored()} rows, "
            f"exit {code} after {time.monotonic() - began:.1f} s"
        )
        pods[eviction.victim] = self.launch(self._log(eviction.victim))

    def _until_drained(self, pods: Sequence[Pod]) -> None:
        until(
            lambda: all(pod.exit_code is not None for pod in pods),
            events=self.events,
            watch=lambda: self._check(pods),
            tail=pods[0].tail,
        )
        self.events.read()
        self._check(pods)
        self.progress(self.items)

    def _check(self, pods: Sequence[Pod]) -> None:
        self.progress(self.stored())
        for pod in pods:
            if pod.exit_code not in (None, EXIT_COMPLETE, EXIT_PREEMPTED, EXIT_KILLED):
                raise DrillError(f"{self.job}: a worker ended with {pod.exit_code} by itself:\n{pod.tail()}")


@contextmanager
def database(folder: Path, owner: str) -> Generator[str]:
    """The embedded PostgreSQL in a process of its own; yields its URI."""
    log = folder / "logs" / "database.log"
    log.unlink(missing_ok=True)
    pod = Pod([*_BATCH, "database", "--dir", str(folder / "postgres")], log=log, owner=owner)
    try:
        yield _uri(pod, log)
    finally:
        pod.preempt(15)


def _uri(pod: Pod, log: Path) -> str:
    """Its first JSON line; the process writes nothing else to standard output."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and pod.exit_code is None:
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):
                return json.loads(line)["uri"]
        time.sleep(POLL_S)
    raise DrillError(f"PostgreSQL did not start:\n{pod.tail()}")


def export(job: str, uri: str, path: Path) -> list[Any]:
    """Every stored row of the job, in order of its item id."""
    completed([*_BATCH, "export", job, "--database", uri, "--out", str(path)])
    return [json.loads(line) for line in path.read_text().splitlines()]
