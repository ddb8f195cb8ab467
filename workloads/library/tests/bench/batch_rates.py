"""How fast: beside a bare loop with a device that takes its time, and alone with one that takes none."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import Connection

from holdfast.contract.exit_codes import EXIT_COMPLETE
from holdfast.inference.queue.postgres import PostgresQueue
from holdfast.inference.results.connect import open_pool
from holdfast.inference.values import Value
from workloads.library.tests.bench.batch_harness import BATCH, BATCH_S, Bench, Fixed, forked, start_command, timed

_BROKER = """
from workloads.library.tests.inference import fake_broker_server
from workloads.library.tests.inference.fake_broker import FakeBroker
import threading
with fake_broker_server.serve(FakeBroker(ack_deadline_s=30.0)) as address:
    print(address, flush=True)
    threading.Event().wait()
"""


def gpu_like(bench: Bench, batches: int = 500) -> dict[str, Any]:
    """20 ms for 32 items: ours, beside the bare loop and beside what tutorials and a reference do."""
    count = batches * BATCH
    bare = count / timed(lambda: [Fixed(BATCH_S).predict([b""] * BATCH) for _ in range(batches)])
    shares: dict[str, float] = {}
    before = _cpu_s()
    for job, overlap in (("ours", True), ("strict", False)):
        bench.fill(job, count)
        before = _cpu_s()
        assert bench.work_as_shipped(job, "gpu_like", overlap=overlap) == EXIT_COMPLETE
        shares[job] = bench.rate(job, count) / bare
        if overlap:
            shares["cpu"] = (_cpu_s() - before) / count
    bench.fill("threads", count)
    assert bench.work("threads", Fixed(BATCH_S)) == EXIT_COMPLETE
    few = count // 16
    bench.fill("tutorial", few)
    tutorial = timed(lambda: _one_by_one(bench, "tutorial"))
    bench.fill("reference", few)
    reference = timed(lambda: _whole_batches(bench, "reference"))
    return {
        "bare_items_per_s": round(bare),
        "ours_items_per_s": round(shares["ours"] * bare),
        "ours_share_of_bare_loop": round(shares["ours"], 4),
        "ours_share_without_overlap": round(shares["strict"], 4),
        "ours_share_in_one_process": round(bench.rate("threads", count) / bare, 4),
        "ours_cpu_us_per_item": round(shares["cpu"] * 1e6, 1),
        "tutorial_items_per_s": round(few / tutorial),
        "reference_items_per_s": round(few / reference),
    }


def _cpu_s() -> float:
    """Of this process and of its ended children, start of the predicting process included."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


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


def free_postgres(bench: Bench, count: int = 20_000) -> dict[str, Any]:
    """Where the limit is when predicting costs nothing: workers as processes, on the queue in PostgreSQL."""
    figures: dict[str, Any] = {}
    for workers in (1, 2, 4):
        job = f"free-{workers}"
        bench.fill(job, count)
        began, busy = time.monotonic(), _machine_busy_s()
        children = [forked(lambda job=job: bench.work_as_shipped(job, "free")) for _ in range(workers)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        assert codes == [EXIT_COMPLETE] * workers, codes
        figures[f"free_postgres_{workers}_items_per_s"] = round(bench.rate(job, count))
        cores = (_machine_busy_s() - busy) / (time.monotonic() - began)
        figures[f"free_postgres_{workers}_busy_cores"] = f"{cores:.2f} of {os.cpu_count()}"
    return figures


def _machine_busy_s() -> float:
    """Of all cores, whoever used them: where this nears their number, they are the limit."""
    user, nice, system, _, _, interrupts, soft, *_ = map(int, Path("/proc/stat").read_text().split()[1:11])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def free_pubsub(bench: Bench, count: int = 10_000) -> dict[str, Any]:
    """The same on real Pub/Sub clients, over the shipped broker (or PUBSUB_EMULATOR_HOST where that is set)."""
    figures: dict[str, Any] = {}
    with _broker() as address:
        environment = {"PUBSUB_EMULATOR_HOST": address}
        source = bench.folder / "rows.jsonl"
        source.write_text("".join(json.dumps({"id": n, "text": f"document {n} " * 8}) + "\n" for n in range(count)))
        for workers in (1, 2, 4):
            job = f"pubsub-{workers}"
            queue = ("--topic", job, "--subscription", job)
            rows = ("--source", str(source), "--body-column", "text")
            seconds = timed(lambda job=job, queue=queue, rows=rows: _wait(
                [start_command(bench, "enqueue", job, *rows, *queue, environment=environment)]))  # fmt: skip
            run = (
                "run",
                job,
                "--predictor",
                "workloads.library.tests.bench.batch_harness:free",
                "--set",
                "lease_s=30",
                *queue,
            )
            run += ("--events", str(bench.folder / f"{job}.jsonl"))
            _wait([start_command(bench, *run, environment=environment) for _ in range(workers)])
            figures[f"free_pubsub_{workers}_items_per_s"] = round(bench.rate(job, count))
        figures["pubsub_enqueue_items_per_s"] = round(count / seconds)
    return figures


def _wait(commands: "list[subprocess.Popen[bytes]]") -> None:
    codes = [process.wait() for process in commands]
    assert not any(codes), codes


@contextmanager
def _broker() -> Generator[str]:
    if address := os.environ.get("PUBSUB_EMULATOR_HOST"):
        yield address
        return
    command = [sys.executable, "-c", _BROKER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()
