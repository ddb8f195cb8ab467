"""How a worker leaves, and what it is like after a million items."""

import os
import resource
import signal
import statistics
import time
from pathlib import Path
from typing import Any

from infra.contract.lifecycle import EXIT_COMPLETE, EXIT_PREEMPTED
from tests.bench.batch_parts import BATCH, Bench, Fixed, forked
from workloads.runtime.shutdown import Shutdown

DRAIN_BATCH_S = 1.0
SAMPLE_BATCHES = 50


def drains(bench: Bench, times: int) -> dict[str, Any]:
    """SIGTERM at a random moment of micro-batches that last a second; the time until the process is gone."""
    job = "drains"
    bench.fill(job, 40 * times * BATCH)
    seconds: list[float] = []
    for number in range(times):
        seen = _stored(bench, job)
        pid = forked(lambda: bench.work(job, Fixed(DRAIN_BATCH_S), Shutdown().install()))
        while _stored(bench, job) == seen:
            time.sleep(0.01)
        time.sleep(DRAIN_BATCH_S * (number * 0.618 % 1))  # spread over a micro-batch
        began = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code == EXIT_PREEMPTED, code
        seconds.append(time.monotonic() - began)
    committed = sum(event["items"] for event in bench.events(job) if event["event"] == "stored")
    seconds.sort()
    return {
        "drains": times,
        "drain_p50_s": round(statistics.median(seconds), 2),
        "drain_p99_s": round(seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))], 2),
        "drain_recommitted": committed - bench.done(job),
    }


def _stored(bench: Bench, job: str) -> int:
    path = bench.folder / f"{job}.jsonl"
    return path.read_text().count('"event": "stored"') if path.exists() else 0


def long_run(bench: Bench, count: int) -> dict[str, Any]:
    """Enqueue and drain with a predictor that costs nothing; the worker's rate and memory early and late."""
    seconds = bench.fill("long", count)
    enqueue_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sample = bench.folder / "memory"
    pid = forked(lambda: bench.work("long", Fixed(0.0, on_batch=_sampler(sample))))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == EXIT_COMPLETE
    memory = [float(line) for line in sample.read_text().split()]
    tenths = _rates_of_tenths(bench, "long")
    return {
        "long_items": count,
        "long_enqueue_items_per_s": round(count / seconds),
        "long_drain_items_per_s": round(bench.rate("long", count)),
        "long_drain_second_tenth_per_s": round(tenths[1]),
        "long_drain_last_tenth_per_s": round(tenths[-1]),
        "long_done": bench.done("long"),
        "long_memory_mib": max(memory),
        "long_memory_growth_mib": round(memory[-1] - memory[len(memory) // 10], 1),
        "enqueue_peak_mib": round(enqueue_peak, 1),
    }


def _sampler(sample: Path) -> Any:
    batches = 0

    def note() -> None:
        nonlocal batches
        batches += 1
        if batches % SAMPLE_BATCHES == 0:
            with sample.open("a") as file:
                file.write(f"{_rss_mib()}\n")

    return note


def _rates_of_tenths(bench: Bench, job: str) -> list[float]:
    stored = [(event["t"], event["items"]) for event in bench.events(job) if event["event"] == "stored"]
    size = len(stored) // 10
    parts = [stored[n * size : (n + 1) * size] for n in range(10)]
    return [sum(items for _, items in part[1:]) / (part[-1][0] - part[0][0]) for part in parts]


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
