"""The harness of worker tests: a job with its items, workers in this process, their results."""

import itertools
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, LiteralString

from psycopg import Connection
from psycopg_pool import ConnectionPool

from holdfast.inference.enqueue import enqueue
from holdfast.inference.items import Item
from holdfast.inference.predictor.predictor_client import ProcessPredictor
from holdfast.inference.predictor.spec import ByteEntropy, PredictorSpec
from holdfast.inference.queue.postgres import PostgresQueue
from holdfast.inference.queue.protocol import Queue
from holdfast.inference.results import jobs
from holdfast.inference.results.postgres import PostgresResults
from holdfast.inference.values import Value
from holdfast.inference.worker.batch_worker import Worker
from holdfast.inference.worker.micro_batch import Parts
from holdfast.inference.worker.settings import WorkerSettings
from holdfast.inference.worker.telemetry import Failpoint, WorkerTelemetry
from holdfast.runtime.events import EventLog
from holdfast.runtime.shutdown import Shutdown
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE
from holdfast.vocabulary.telemetry import KIND_BATCH
from workloads.library.tests.processes import until

Line = dict[str, Any]
QUICK = WorkerSettings(
    micro_batch=8,
    fill_s=0.01,
    pull_wait_s=0.2,
    lease_s=2.0,
    retry_delay_s=0.01,
)
_numbers = itertools.count()


class CountingPredictor(ProcessPredictor):
    """Computes bits per byte in this process, and counts how often each body was computed."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        super().__init__(PredictorSpec(name="entropy"), timeout_s=300.0)
        self.configuration = ByteEntropy.configuration
        self.counts = Counter[bytes]()
        self.before = before

    def prepare(self, bodies: Sequence[bytes]) -> None: ...

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        self.before()
        self.counts.update(bodies)
        if any(b"\x00never" in body for body in bodies):
            raise ValueError(f"cannot read {bodies!r}")
        return ByteEntropy().predict(bodies)


def items(job: str, count: int) -> list[Item]:
    documents: list[Item] = []
    for n in range(count):
        body = f"document {n} ".encode() * 3
        documents.append(Item(job=job, id=f"item-{n:05d}", body=body))
    return documents


def load_json_lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@dataclass(kw_only=True)
class Harness:
    """Holds one job, and makes workers for it in this process."""

    pool: ConnectionPool[Connection]
    connection: Connection
    job: str
    events: Path
    settings: WorkerSettings = QUICK

    @cached_property
    def queue(self) -> Queue:
        """The queue in the database, unless a test assigns another one."""
        return PostgresQueue(self.pool, self.job, lease_s=self.settings.lease_s)

    def enqueue(self, documents: Sequence[Item]) -> None:
        enqueue(
            self.connection,
            self.queue,
            self.job,
            documents,
        )

    def results(self, predictor: ProcessPredictor, name: str = "w") -> PostgresResults:
        fingerprint = jobs.pin(self.connection, self.job, predictor.configuration)
        return PostgresResults(
            self.pool,
            job=self.job,
            fingerprint=fingerprint,
            worker=f"{self.job}-{name}",
        )

    def worker(
        self,
        predictor: ProcessPredictor,
        shutdown: Shutdown | None = None,
        at: Callable[[Failpoint], None] = lambda _: None,
    ) -> Worker:
        log = EventLog.open(self.events, job=self.job, kind=KIND_BATCH)
        parts = Parts(
            queue=self.queue,
            results=self.results(predictor, f"w{os.getpid()}-{next(_numbers)}"),
            settings=self.settings,
            shutdown=shutdown or Shutdown(),
            telemetry=WorkerTelemetry(log, at),
        )
        return Worker(parts, predictor)

    def query_value(self, query: LiteralString) -> Any:
        """Returns the value of a query, which may use %(job)s."""
        row = self.connection.execute(query, {"job": self.job}).fetchone()
        return row and row[0]

    def rows(self) -> dict[str, tuple[str, Line]]:
        """Returns status and value by item."""
        query = "SELECT item, status, value FROM holdfast.result WHERE job = %s"
        rows: dict[str, tuple[str, Line]] = {}
        for item, status, value in self.connection.execute(query, (self.job,)):
            rows[item] = (status, value)
        return rows

    def event_lines(self, event: str) -> list[Line]:
        if not self.events.exists():
            return []
        lines: list[Line] = []
        for line in load_json_lines(self.events):
            if line["event"] == event:
                lines.append(line)
        return lines

    def count_items(self, event: str) -> int:
        """Returns the sum of `items` over the lines of an event."""
        return sum(line["items"] for line in self.event_lines(event))


@contextmanager
def run_in_thread(
    harness: Harness, predictor: type[CountingPredictor] = CountingPredictor
) -> Generator[threading.Thread]:
    """Runs a worker in a thread: yields after its first commit, then waits for a drained job."""
    codes: list[int] = []
    worker = harness.worker(predictor(before=lambda: time.sleep(0.01)))
    thread = threading.Thread(target=lambda: codes.append(worker.run()))
    thread.start()
    until(lambda: harness.event_lines("stored"), alive=thread.is_alive)
    yield thread
    thread.join(120)
    assert codes == [EXIT_COMPLETE]


def expect_rows(documents: Sequence[Item]) -> dict[str, tuple[str, Line]]:
    """Returns the rows of a job that is done."""
    values = ByteEntropy().predict([item.body for item in documents])
    rows: dict[str, tuple[str, Line]] = {}
    for item, value in zip(documents, values, strict=True):
        rows[item.id] = ("done", dict(value))
    return rows
