"""Batch workers and their database as processes of this machine; evicted workers are replaced."""

import json
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from holdfast.drill.errors import DrillError
from holdfast.drill.events import POLL_S, run_command, until
from holdfast.drill.plan import Fault
from holdfast.drill.pods import Pod
from holdfast.drill.target import Undo
from holdfast.drill.targets.local import HOLDFAST, Eviction, Local, Measure, measure_time
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
        """`uri` names a database whose queue holds the items; if empty, the target starts one."""
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
        self._resources = ExitStack()
        self._pods: list[Pod] = []
        self._replacements: list[Pod] = []
        self._rows: list[Any] | None = None

    def start(self) -> None:
        if not self._uri:
            self._uri = self._resources.enter_context(database(self.scratch, self.owner))
            source = self.scratch / "items.jsonl"
            self._write_items(source)
            enqueue(self.job, self._uri, source, "--id-column", "id", "--body-column", "body")
        self._pods = [self._start_worker(number) for number in range(self.workers)]

    def _write_items(self, path: Path) -> None:
        with path.open("w") as file:
            for number in range(self.items):
                item = {"id": f"item-{number:05d}", "body": f"{number} {_BODY}"}
                file.write(json.dumps(item) + "\n")

    def candidates(self) -> list[str]:
        return [f"pod-{pod.pid}" for pod in self._pods if pod.exit_code is None]

    def inject(self, victims: Sequence[str]) -> str:
        reports: list[str] = []
        for number, pod in enumerate(self._pods):
            if f"pod-{pod.pid}" in victims:
                reports.append(self._evict_worker(number, self.signal))
        return "; ".join(reports)

    def _evict_worker(self, number: int, signal: str) -> str:
        """Evicts and replaces a worker; returns a description."""
        pod = self._pods[number]
        rows = self.count_rows()
        code, took_s = measure_time(lambda: self.evict(pod, signal))
        self.kills += 1
        replacement = self._start_worker(number)
        self._replacements.append(replacement)
        self._pods[number] = replacement
        return f"{signal} to worker {number} after {rows} rows, exit {code} after {took_s:.1f} s"

    def has_recovered(self) -> bool:
        """Returns whether all work is done, so that every metric is final."""
        self.events.read()
        return self._is_drained()

    def _is_drained(self) -> bool:
        return all(pod.exit_code == EXIT_COMPLETE for pod in self._pods)

    def rollback(self) -> Iterable[Undo]:
        yield "stop its database", self._resources.close
        yield from super().rollback()

    def play(self, schedule: Sequence[Eviction], log: Callable[[str], None]) -> None:
        """Runs a schedule of evictions until every item is stored.

        Raises DrillError if a worker ends by itself.
        """
        self.start()
        for eviction in schedule:
            self._wait(
                lambda items=eviction.progress: self.count_rows() >= items, due=eviction.progress
            )
            time.sleep(eviction.delay_s)  # part of the schedule, not a wait for a condition
            report = self._evict_worker(eviction.victim, eviction.signal)
            log(f"{self.job}: {report}")
        self._wait(self._is_drained)
        self.events.read()
        self.close()

    def _wait(self, done: Callable[[], bool], due: int = 0) -> None:
        def watch() -> None:
            rows = self.count_rows()
            if due and self._is_drained() and rows < due:
                raise DrillError(
                    f"{self.job}: drained after {rows} of {due} items, before the next eviction"
                )
            for pod in self._pods:
                if self._has_crashed(pod):
                    raise DrillError(
                        f"{self.job}: a worker ended with {pod.exit_code} by itself:\n{pod.tail()}"
                    )

        until(
            done,
            events=self.events,
            watch=watch,
            tail=self._pods[0].tail,
        )

    def _start_worker(self, number: int) -> Pod:
        options = ("--window", str(DEFAULT_WINDOW.pod_s), "--events-file", str(self.path))
        command = [*_BATCH, "run", self.job, *self._flags, *options]
        return self.launch(command, {"HOLDFAST_DATABASE_URL": self._uri}, f"{self.job}-{number}")

    # -- measurements --

    def metrics(self) -> Mapping[str, Measure]:
        return {
            "stored_items": self.count_rows,
            "crashes": lambda: sum(self._has_crashed(pod) for pod in self._pods),
            "recovered_s": self._measure_recovery,
            "items_lost": self._count_lost_items,
            "items_duplicated": self._count_duplicates,
            "dead_letters": lambda: len(self.events.of("dead_lettered")),
        }

    def count_rows(self) -> int:
        """Counts the rows that workers committed, by their events: a rewritten row counts twice."""
        return sum(event["items"] for event in self.events.of("stored"))

    def _has_crashed(self, pod: Pod) -> bool:
        return pod.exit_code not in (None, EXIT_COMPLETE, EXIT_KILLED, EXIT_PREEMPTED)

    def _measure_recovery(self) -> float | None:
        """Returns the seconds from the eviction to the first row of a replacement."""
        eviction_t = self.eviction_time()
        if eviction_t is None:
            return None
        pids = {str(pod.pid) for pod in self._replacements}
        for event in sorted(self.events.of("stored"), key=lambda event: event["t"]):
            # The name of a process is <host>-<process id>-<random>.
            pid = event["process"].split("-")[-2]
            if pid in pids:
                return max(0.0, event["t"] - eviction_t)
        return None

    def _count_lost_items(self) -> float | None:
        rows = self._read_rows()
        return None if rows is None else self.items - len(_item_ids(rows))

    def _count_duplicates(self) -> float | None:
        rows = self._read_rows()
        return None if rows is None else len(rows) - len(_item_ids(rows))

    def _read_rows(self) -> list[Any] | None:
        """Returns the rows of the database once the workers are done; None before."""
        if self._rows is None and self.has_recovered():
            self._rows = export(self.job, self._uri, self.folder / "rows.jsonl")
        return self._rows


def _item_ids(rows: Iterable[Any]) -> set[str]:
    return {row["item"] for row in rows}


@contextmanager
def database(folder: Path, owner: str) -> Generator[str]:
    """Runs the embedded PostgreSQL in a process of its own; yields its URI."""
    log = folder / "logs" / "database.log"
    log.unlink(missing_ok=True)
    command = [*_BATCH, "database", "--dir", str(folder / "postgres")]
    pod = Pod(command, log=log, owner=owner)
    try:
        yield _wait_for_uri(pod, log)
    finally:
        pod.preempt(15)


def _wait_for_uri(pod: Pod, log: Path) -> str:
    """Returns the URI in the first JSON line of the process. Raises DrillError if none appears."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and pod.exit_code is None:
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):
                return json.loads(line)["uri"]
        time.sleep(POLL_S)
    if pod.exit_code is not None:
        reason = f"exit {pod.exit_code}"
    else:
        reason = f"not ready after {START_S:g} s"
    raise DrillError(f"PostgreSQL did not start, {reason}:\n{pod.tail()}")


def enqueue(job: str, uri: str, source: Path, *columns: str) -> None:
    options = ("--database", uri, "--source", str(source), *columns)
    run_command([*_BATCH, "enqueue", job, *options])


def export(job: str, uri: str, path: Path) -> list[Any]:
    """Returns every stored row of the job, sorted by item id, and writes them to `path`."""
    run_command([*_BATCH, "export", job, "--database", uri, "--out", str(path)])
    return [json.loads(line) for line in path.read_text().splitlines()]
