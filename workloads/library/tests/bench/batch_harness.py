"""What the batch benchmarks are built from: one database, jobs in it, workers in this process, forked, or as commands."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psycopg import Connection

from holdfast.contract.telemetry import KIND_BATCH
from holdfast.inference.enqueue import enqueue
from holdfast.inference.items import Item
from holdfast.inference.predictor.proxy import ProcessPredictor
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.queue.postgres import PostgresQueue
from holdfast.inference.results import jobs, schema
from holdfast.inference.results.connect import connect, open_pool
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.inference.results.postgres import PostgresResults
from holdfast.inference.values import Value
from holdfast.inference.worker.batch_worker import Worker
from holdfast.inference.worker.micro_batch import Parts
from holdfast.inference.worker.settings import WorkerSettings
from holdfast.inference.worker.telemetry import Failpoint, WorkerTelemetry
from holdfast.runtime.events import EventLog
from holdfast.runtime.shutdown import Shutdown

BATCH = 32
BATCH_S = 0.020
SETTINGS = WorkerSettings(micro_batch=BATCH, pull_wait_s=0.2, lease_s=30.0)


@dataclass
class Fixed:
    """A device that takes `seconds` for a micro-batch, however full; zero: nothing at all."""

    seconds: float
    configuration: Mapping[str, object] = field(default_factory=lambda: {"predictor": "fixed"})

    def load(self) -> None: ...

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        if self.seconds:
            time.sleep(self.seconds)
        return [{"score": len(body)} for body in bodies]


def fixed(spec: PredictorSpec) -> Fixed:
    return Fixed(float(spec.model))


def in_process(name: str, **given: str) -> ProcessPredictor:
    """As `batch run` predicts: in a process of its own. `name`: MODULE:FUNCTION."""
    predictor = ProcessPredictor(PredictorSpec(name=name, **given), timeout_s=60.0)
    predictor.load()
    return predictor


@dataclass
class Bench:
    uri: str
    connection: Connection
    folder: Path

    def fill(self, job: str, count: int) -> int:
        """An exit code, as it may run in a fork: so with connections of its own."""
        with connect(self.uri) as connection, open_pool(self.uri, size=1) as pool:
            enqueue(connection, PostgresQueue(pool, job, lease_s=30.0), job, items(job, count))
        return 0

    def log(self, job: str) -> EventLog:
        return EventLog.open(self.folder / f"{job}.jsonl", job=job, kind=KIND_BATCH)

    def run(
        self,
        job: str,
        predictor: ProcessPredictor,
        settings: WorkerSettings,
        stop: Shutdown,
        events: EventLog,
        at: Callable[[Failpoint], None] = lambda _: None,
    ) -> int:
        with connect(self.uri) as connection:
            fingerprint = jobs.pin(connection, job, predictor.configuration)
        with open_pool(self.uri) as pool:
            results = PostgresResults(pool, job=job, fingerprint=fingerprint, worker=events.process)
            parts = Parts(
                queue=PostgresQueue(pool, job, lease_s=settings.lease_s, sleep=stop.wait),
                results=results,
                settings=settings,
                shutdown=stop,
                telemetry=WorkerTelemetry(events, at),
            )
            return Worker(parts, predictor).run()

    def work_as_shipped(self, job: str, batch_s: float, shutdown: Shutdown | None = None) -> int:
        with closing(in_process(f"{__name__}:fixed", model=str(batch_s))) as made, self.log(job) as events:
            return self.run(job, made, SETTINGS, shutdown or Shutdown(), events)

    def events(self, job: str) -> list[dict[str, Any]]:
        path = self.folder / f"{job}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def rate(self, job: str, count: int) -> float:
        """Items a second from the first claim to the last commit: a start costs once, a job runs for hours."""
        times = {name: [e["t"] for e in self.events(job) if e["event"] == name] for name in ("claimed", "stored")}
        return count / (max(times["stored"]) - min(times["claimed"]))

    def done(self, job: str) -> int:
        query = "SELECT count(*) FROM holdfast.result WHERE job = %s AND status = 'done'"
        row = self.connection.execute(query, (job,)).fetchone()
        self.connection.commit()
        return int(row[0]) if row else 0


@contextmanager
def database(*settings: str) -> Generator[Bench]:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-batch-bench-") as name,
        EmbeddedPostgres((folder := Path(name)) / "db", settings=settings) as server,
        connect(server.uri) as connection,
    ):
        schema.migrate(connection)
        yield Bench(uri=server.uri, connection=connection, folder=folder)


def start_command(bench: Bench, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "holdfast", "batch", *arguments, "--database", bench.uri]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def forked(work: Callable[[], int]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    return pid


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def items(job: str, count: int) -> Iterator[Item]:
    return (Item(job=job, id=f"item-{n:09d}", body=f"document {n} ".encode() * 8) for n in range(count))
