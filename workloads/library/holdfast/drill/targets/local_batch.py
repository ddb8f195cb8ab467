"""Batch workers and their database as processes of this machine: one vanishes, another takes its
place.
"""

import json
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from holdfast.drill.errors import DrillError
from holdfast.drill.events import POLL_S, completed, until
from holdfast.drill.plan import Fault
from holdfast.drill.pods import Pod
from holdfast.drill.target import Undo
from holdfast.drill.targets.local import HOLDFAST, Eviction, Local, Measure, timed
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_KILLED, EXIT_PREEMPTED
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW
from holdfast.vocabulary.telemetry import KIND_BATCH

START_S = 60.0
_BODY = "an item that a worker scores while another one vanishes. " * 120
_BATCH = (*HOLDFAST, "batch")
_WORKER = ("--predictor", "entropy", "--set", "micro_batch=4", "--set", "lease_s=3")


class LocalBatch(Local):
    def __init__(
        self,
        folder: Path,
        fault: Fault = Fault.POWER_LOSS,
        *,
        workers: int,
        items: int,
        owner: str = "",
        job: str = "drill",
        uri: str = "",
        worker: Sequence[str] = _WORKER,
    ) -> None:
        """`uri`: of a database that is there, with the items in its queue; empty: its own."""
        super().__init__(
            folder,
            KIND_BATCH,
            fault=fault,
            owner=owner,
            job=job,
        )
        self.workers = workers
        self.items = items
        self._flags = worker
        self._uri = uri
        self.kills = 0
        self._open = ExitStack()
        self._pods: list[Pod] = []
        self._replacements: list[Pod] = []
        self._rows: list[Any] | None = None

    def start(self) -> None:
        if not self._uri:
            self._uri = self._open.enter_context(database(self.scratch, self.owner))
            source = self.scratch / "items.jsonl"
            lines = (
                json.dumps({"id": f"item-{n:05d}", "body": f"{n} {_BODY}"})
                for n in range(self.items)
            )
            source.write_text("\n".join(lines) + "\n")
            enqueue(self.job, self._uri, source, "--id-column", "id", "--body-column", "body")
        self._pods = [self._worker(n) for n in range(self.workers)]

    def candidates(self) -> list[str]:
        return [f"pod-{pod.pid}" for pod in self._pods if pod.exit_code is None]

    def inject(self, victims: Sequence[str]) -> str:
        hit = [number for number, pod in enumerate(self._pods) if f"pod-{pod.pid}" in victims]
        return "; ".join(self._hit(number, self.signal) for number in hit)

    def _hit(self, number: int, signal: str) -> str:
        """A worker is evicted and replaced."""
        pod = self._pods[number]
        stored = self.stored()
        code, took_s = timed(lambda: self.evict(pod, signal))
        self.kills += 1
        self._replacements.append(self._worker(number))
        self._pods[number] = self._replacements[-1]
        return f"{signal} to worker {number} after {stored} rows, exit {code} after {took_s:.1f} s"

    def recovered(self) -> bool:
        """Drained, so that every number is final."""
        self.events.read()
        return self._drained()

    def _drained(self) -> bool:
        return all(pod.exit_code == EXIT_COMPLETE for pod in self._pods)

    def rollback(self) -> Iterable[Undo]:
        yield "stop its database", self._open.close
        yield from super().rollback()

    def play(self, schedule: Sequence[Eviction], log: Callable[[str], None]) -> None:
        """A schedule of evictions, until every item is stored. DrillError where a worker ends by
        itself.
        """
        self.start()
        for eviction in schedule:
            self._wait(lambda at=eviction.at: self.stored() >= at, due=eviction.at)
            time.sleep(eviction.delay_s)  # part of the schedule, not a wait for a condition
            log(f"{self.job}: {self._hit(eviction.victim, eviction.signal)}")
        self._wait(self._drained)
        self.events.read()
        self.close()

    def _wait(self, done: Callable[[], bool], due: int = 0) -> None:
        def watch() -> None:
            if due and self._drained() and self.stored() < due:
                raise DrillError(
                    f"{self.job}: drained after {self.stored()} of {due} items, before the next"
                    " eviction"
                )
            ended = [pod for pod in self._pods if self._crashed(pod)]
            if ended:
                code = ended[0].exit_code
                tail = ended[0].tail()
                raise DrillError(f"{self.job}: a worker ended with {code} by itself:\n{tail}")

        until(
            done,
            events=self.events,
            watch=watch,
            tail=self._pods[0].tail,
        )

    def _worker(self, number: int) -> Pod:
        window = ("--window", str(DEFAULT_WINDOW.pod_s), "--events", str(self.path))
        command = [
            *_BATCH,
            "run",
            self.job,
            *self._flags,
            *window,
        ]
        return self.launch(command, {"HOLDFAST_DATABASE_URL": self._uri}, f"{self.job}-{number}")

    # -- what is measured --

    def metrics(self) -> Mapping[str, Measure]:
        return {
            "stored_items": self.stored,
            "crashes": lambda: sum(self._crashed(pod) for pod in self._pods),
            "recovered_s": self._recovered_s,
            "items_lost": lambda: self._of_rows(lambda rows, ids: self.items - len(ids)),
            "items_duplicated": lambda: self._of_rows(lambda rows, ids: len(rows) - len(ids)),
            "dead_letters": lambda: len(self.events.of("dead_lettered")),
        }

    def stored(self) -> int:
        """Rows that workers committed, by their own event lines: rows stored again count again."""
        return sum(event["items"] for event in self.events.of("stored"))

    def _crashed(self, pod: Pod) -> bool:
        return pod.exit_code not in (None, EXIT_COMPLETE, EXIT_KILLED, EXIT_PREEMPTED)

    def _recovered_s(self) -> float | None:
        """Until a replacement has stored something."""
        evicted = self.evicted_at()
        pids = {str(pod.pid) for pod in self._replacements}
        # A process is called <host>-<process id>-<random>.
        new = [e["t"] for e in self.events.of("stored") if e["process"].split("-")[-2] in pids]
        return None if evicted is None or not new else max(0.0, min(new) - evicted)

    def _of_rows(self, count: Callable[[list[Any], set[str]], int]) -> float | None:
        """Of what the database has, once the workers are done; None before."""
        if self._rows is None and self.recovered():
            self._rows = export(self.job, self._uri, self.folder / "rows.jsonl")
        if self._rows is None:
            return None
        return count(self._rows, {row["item"] for row in self._rows})


@contextmanager
def database(folder: Path, owner: str) -> Generator[str]:
    """The embedded PostgreSQL in a process of its own; yields its URI."""
    log = folder / "logs" / "database.log"
    log.unlink(missing_ok=True)
    pod = Pod(
        [
            *_BATCH,
            "database",
            "--dir",
            str(folder / "postgres"),
        ],
        log=log,
        owner=owner,
    )
    try:
        yield _uri(pod, log)
    finally:
        pod.preempt(15)


def _uri(pod: Pod, log: Path) -> str:
    """Its first JSON line; the process writes nothing else to standard output."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and pod.exit_code is None:
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):
                return json.loads(line)["uri"]
        time.sleep(POLL_S)
    if pod.exit_code is not None:
        ended = f"exit {pod.exit_code}"
    else:
        ended = f"not ready after {START_S:g} s"
    raise DrillError(f"PostgreSQL did not start, {ended}:\n{pod.tail()}")


def enqueue(job: str, uri: str, source: Path, *columns: str) -> None:
    completed(
        [
            *_BATCH,
            "enqueue",
            job,
            "--database",
            uri,
            "--source",
            str(source),
            *columns,
        ]
    )


def export(job: str, uri: str, path: Path) -> list[Any]:
    """Every stored row of the job, sorted by item id."""
    completed(
        [
            *_BATCH,
            "export",
            job,
            "--database",
            uri,
            "--out",
            str(path),
        ]
    )
    return [json.loads(line) for line in path.read_text().splitlines()]
