"""The harness of the batch benchmarks: a database, jobs in it, and the commands as shipped."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg import Connection

from holdfast.inference.enqueue import enqueue
from holdfast.inference.queue.postgres import PostgresQueue
from holdfast.inference.results import schema
from holdfast.inference.results.connect import connect, open_pool
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from workloads.library.tests.bench.batches import predictors as batch_predictors
from workloads.library.tests.inference.harness import items


@dataclass
class Bench:
    uri: str
    connection: Connection
    folder: Path

    def fill(self, job: str, count: int) -> None:
        with connect(self.uri) as connection, open_pool(self.uri, size=1) as pool:
            enqueue(connection, PostgresQueue(pool, job, lease_s=30.0), job, items(job, count))

    def start(self, verb: str, job: str, *options: str) -> subprocess.Popen[bytes]:
        """Starts `holdfast batch VERB`."""
        command = [
            sys.executable,
            "-m",
            "holdfast",
            "batch",
            verb,
            job,
            *options,
            "--database",
            self.uri,
        ]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def worker(
        self,
        job: str,
        predictor: type[Any],
        model: object,
        run: str = "",
    ) -> subprocess.Popen[bytes]:
        settings = (
            "--predictor",
            f"{batch_predictors.__name__}:{predictor.__name__}",
            "--model",
            str(model),
            "--run",
            run,
        )
        return self.start(
            "run",
            job,
            *settings,
            "--events-file",
            str(self._log(job)),
        )

    def events(self, job: str, word: str) -> list[dict[str, Any]]:
        log = self._log(job)
        lines = log.read_text().splitlines() if log.exists() else []
        events: list[dict[str, Any]] = []
        for event in map(json.loads, lines):
            if event["event"] == word:
                events.append(event)
        return events

    def rate(self, job: str, count: int) -> float:
        """Returns items per second from the first claim to the last commit.

        The start is left out: a job pays for it once and runs for hours.
        """
        first_claim = min(event["t"] for event in self.events(job, "claimed"))
        last_commit = max(event["t"] for event in self.events(job, "stored"))
        return count / (last_commit - first_claim)

    def rows(self, query: Any, *parameters: object) -> list[Any]:
        with self.connection.transaction():
            cursor = self.connection.execute(query, parameters)
            return cursor.fetchall() if cursor.description else []

    def done(self, job: str) -> int:
        return len(
            self.rows("SELECT item FROM holdfast.result WHERE job = %s AND status = 'done'", job)
        )

    def _log(self, job: str) -> Path:
        return self.folder / f"{job}.jsonl"


@contextmanager
def database(*settings: str) -> Generator[Bench]:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-batch-bench-") as folder,
        EmbeddedPostgres(Path(folder) / "db", settings=settings) as server,
        connect(server.uri) as connection,
    ):
        schema.migrate(connection)
        yield Bench(uri=server.uri, connection=connection, folder=Path(folder))
