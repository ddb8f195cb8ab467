"""Throughput, drain time and memory of the batch worker.

    python -m tests.bench.batch                 # a minute or two
    python -m tests.bench.batch --items 1000000 # the long run

Ends with one JSON line; `goals` says true or false for each number that is promised. Durable settings:
the database fsyncs. Every figure includes start-up of threads and the last commit, not of interpreters.
"""

import argparse
import json
import os
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import Connection

from infra.contract.lifecycle import EXIT_COMPLETE, EXIT_PREEMPTED
from infra.contract.telemetry import KIND_BATCH
from workloads.inference import jobs, schema
from workloads.inference.connect import connect, open_pool
from workloads.inference.database import EmbeddedPostgres
from workloads.inference.enqueue import enqueue
from workloads.inference.items import Item
from workloads.inference.queue_postgres import PostgresQueue
from workloads.inference.results import Value
from workloads.inference.results_postgres import PostgresResults
from workloads.inference.settings import WorkerSettings
from workloads.inference.steps import Report
from workloads.inference.worker import Worker
from workloads.runtime.events import EventLog
from workloads.runtime.shutdown import Shutdown

BATCH = 32
BATCH_S = 0.020
DRAIN_BATCH_S = 1.0
MEMORY_GROWTH_MIB = 64
SETTINGS = WorkerSettings(micro_batch=BATCH, pull_wait_s=0.2, lease_s=30.0)


@dataclass
class Fixed:
    """A device that takes `seconds` for a micro-batch, however full; zero: nothing at all."""

    seconds: float
    configuration: Mapping[str, object] = field(default_factory=lambda: {"predictor": "fixed"})
    on_batch: Callable[[], object] = lambda: None

    def load(self) -> None: ...

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        self.on_batch()
        if self.seconds:
            time.sleep(self.seconds)
        return [{"score": len(body)} for body in bodies]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=20_000, help="of the long run with a predictor that costs nothing")
    parser.add_argument("--drains", type=int, default=20)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-batch-bench-")))
        server = stack.enter_context(EmbeddedPostgres(folder / "db"))
        connection = stack.enter_context(connect(server.uri))
        schema.migrate(connection)
        bench = Bench(uri=server.uri, connection=connection, folder=folder)
        figures |= gpu_like(bench) | free_predictor(bench)
        figures |= drains(bench, options.drains) | long_run(bench, options.items)
    goals = {
        "throughput_95_percent": figures["ours_share_of_bare_loop"] >= 0.95,
        "drain_p99_under_5_s": figures["drain_p99_s"] < 5.0,
        "drain_redoes_nothing_committed": figures["drain_recommitted"] == 0,
        "memory_flat": figures["long_memory_growth_mib"] < MEMORY_GROWTH_MIB,
        "long_run_complete": figures["long_done"] == options.items,
    }
    for name, value in figures.items():
        print(f"{name:<34} {value}")
    print(json.dumps({**figures, "goals": goals}))
    return 0 if all(goals.values()) else 1


@dataclass
class Bench:
    uri: str
    connection: Connection
    folder: Path

    def fill(self, job: str, count: int) -> float:
        """Seconds to enqueue."""
        began = time.monotonic()
        with open_pool(self.uri, size=1) as pool:
            enqueue(self.connection, PostgresQueue(pool, job, lease_s=30.0), job, _items(job, count), lambda _: None)
        return time.monotonic() - began

    def work(self, job: str, predictor: Fixed, shutdown: Shutdown | None = None) -> int:
        events = EventLog.open(self.folder / f"{job}.jsonl", job=job, kind=KIND_BATCH)
        with connect(self.uri) as connection:
            fingerprint = jobs.pin(connection, job, predictor.configuration)
        with events, open_pool(self.uri) as pool:
            results = PostgresResults(pool, job=job, fingerprint=fingerprint, worker=events.process, max_failures=3)
            stop = shutdown or Shutdown()
            return Worker(
                queue=PostgresQueue(pool, job, lease_s=SETTINGS.lease_s, sleep=stop.wait),
                results=results,
                predictor=predictor,
                settings=SETTINGS,
                shutdown=stop,
                report=Report(events),
            ).run()

    def done(self, job: str) -> int:
        query = "SELECT count(*) FROM holdfast.result WHERE job = %s AND status = 'done'"
        row = self.connection.execute(query, (job,)).fetchone()
        self.connection.commit()
        return int(row[0]) if row else 0


def gpu_like(bench: Bench, batches: int = 250) -> dict[str, Any]:
    """20 ms for 32 items: ours, beside the bare loop and beside what tutorials and a reference do."""
    count = batches * BATCH
    bare = _timed(lambda: [Fixed(BATCH_S).predict([b""] * BATCH) for _ in range(batches)])
    bench.fill("ours", count)
    cpu = time.process_time()
    ours = _steady(bench, "ours", count)
    cpu = time.process_time() - cpu
    few = count // 16
    bench.fill("tutorial", few)
    tutorial = _timed(lambda: _one_by_one(bench, "tutorial"))
    bench.fill("reference", few)
    reference = _timed(lambda: _whole_batches(bench, "reference"))
    return {
        "bare_items_per_s": round(count / bare),
        "ours_items_per_s": round(ours),
        "ours_share_of_bare_loop": round(ours / (count / bare), 4),
        "ours_cpu_us_per_item": round(cpu / count * 1e6, 1),
        "tutorial_items_per_s": round(few / tutorial),
        "reference_items_per_s": round(few / reference),
    }


def _steady(bench: Bench, job: str, count: int) -> float:
    """Items a second from the first prediction to the last commit: a start costs once, a job runs for hours."""
    first: list[float] = []
    predictor = Fixed(BATCH_S, on_batch=lambda: first or first.append(time.monotonic()))
    assert bench.work(job, predictor) == EXIT_COMPLETE
    lines = [json.loads(line) for line in (bench.folder / f"{job}.jsonl").read_text().splitlines()]
    stored = [line["t"] for line in lines if line["event"] == "stored"]
    lasted = stored[-1] - (time.time() - (time.monotonic() - first[0]))
    return count / lasted


def _one_by_one(bench: Bench, job: str) -> None:
    """The tutorials' pattern: pull one, predict it alone, insert, commit, ack."""
    predictor = Fixed(BATCH_S)
    with open_pool(bench.uri) as pool, psycopg.connect(bench.uri) as connection:
        queue = PostgresQueue(pool, job, lease_s=30.0)
        while leases := queue.pull(1, 0.0):
            (value,) = predictor.predict([leases[0].item.body if leases[0].item else b""])
            _insert(connection, job, [(leases[0].item.id if leases[0].item else "", value)])
            queue.ack(leases)


def _whole_batches(bench: Bench, job: str) -> None:
    """The pattern of an asynchronous reference: pull a batch, wait for all of it, store, ack; nothing overlaps."""
    predictor = Fixed(BATCH_S)
    with open_pool(bench.uri) as pool, psycopg.connect(bench.uri) as connection:
        queue = PostgresQueue(pool, job, lease_s=30.0)
        while leases := queue.pull(BATCH, 0.0):
            found = [lease.item for lease in leases if lease.item]
            values = predictor.predict([item.body for item in found])
            for item, value in zip(found, values, strict=True):
                _insert(connection, job, [(item.id, value)])
            queue.ack(leases)


def _insert(connection: Connection, job: str, rows: list[tuple[str, Value]]) -> None:
    for item, value in rows:
        connection.execute(
            "INSERT INTO holdfast.result (job, item, fingerprint, status, fence, worker, value)"
            " VALUES (%s, %s, 'bench', 'done', 0, 'bench', %s::jsonb)",
            (job, item, json.dumps(value)),
        )
    connection.commit()


def free_predictor(bench: Bench, count: int = 10_000) -> dict[str, Any]:
    """Where the limit is when predicting costs nothing: workers as processes."""
    figures: dict[str, Any] = {}
    for workers in (1, 2, 4):
        job = f"free-{workers}"
        bench.fill(job, count)
        began = time.monotonic()
        children = [_forked(lambda job=job: bench.work(job, Fixed(0.0))) for _ in range(workers)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        assert codes == [EXIT_COMPLETE] * workers, codes
        figures[f"free_postgres_{workers}_items_per_s"] = round(count / (time.monotonic() - began))
    return figures


def drains(bench: Bench, times: int) -> dict[str, Any]:
    """SIGTERM at a random moment of micro-batches that last a second; the time until the process is gone."""
    job = "drains"
    bench.fill(job, 40 * times * BATCH)
    seconds: list[float] = []
    for number in range(times):
        seen = _events(bench, job, "stored")
        pid = _forked(lambda: bench.work(job, Fixed(DRAIN_BATCH_S), _listening()))
        while _events(bench, job, "stored") == seen:
            time.sleep(0.01)
        time.sleep(DRAIN_BATCH_S * (number * 0.618 % 1))  # spread over a micro-batch
        began = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code == EXIT_PREEMPTED, code
        seconds.append(time.monotonic() - began)
    lines = [json.loads(line) for line in (bench.folder / f"{job}.jsonl").read_text().splitlines()]
    committed = sum(line["items"] for line in lines if line["event"] == "stored")
    seconds.sort()
    return {
        "drains": times,
        "drain_p50_s": round(statistics.median(seconds), 2),
        "drain_p99_s": round(seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))], 2),
        "drain_recommitted": committed - bench.done(job),
    }


def _events(bench: Bench, job: str, word: str) -> int:
    path = bench.folder / f"{job}.jsonl"
    return path.read_text().count(f'"event": "{word}"') if path.exists() else 0


def _listening() -> Shutdown:
    return Shutdown().install()


def long_run(bench: Bench, count: int) -> dict[str, Any]:
    """Enqueue and drain with a predictor that costs nothing; memory of the worker at a tenth and at the end."""
    seconds = bench.fill("long", count)
    sample = bench.folder / "memory"
    began = time.monotonic()

    def work() -> int:
        batches = 0

        def note() -> None:
            nonlocal batches
            batches += 1
            if batches % 50 == 0:
                with sample.open("a") as file:
                    file.write(f"{_rss_mib()}\n")

        return bench.work("long", Fixed(0.0, on_batch=note))

    pid = _forked(work)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == EXIT_COMPLETE
    memory = [float(line) for line in sample.read_text().split()] or [_rss_mib()]
    return {
        "long_items": count,
        "long_enqueue_items_per_s": round(count / seconds),
        "long_drain_items_per_s": round(count / (time.monotonic() - began)),
        "long_done": bench.done("long"),
        "long_memory_mib": max(memory),
        "long_memory_growth_mib": round(memory[-1] - memory[len(memory) // 10], 1),
        "enqueue_peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def _forked(work: Callable[[], int]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    return pid


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _items(job: str, count: int) -> Iterator[Item]:
    return (Item(job=job, id=f"item-{n:09d}", body=f"document {n} ".encode() * 8) for n in range(count))


if __name__ == "__main__":
    sys.exit(main())
