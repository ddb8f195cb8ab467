"""How a worker leaves, and what it is like after a million items."""

import json
import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

from holdfast.contract.exit_codes import EXIT_COMPLETE, EXIT_PREEMPTED
from holdfast.runtime.shutdown import Shutdown
from workloads.library.tests.bench.batch_harness import BATCH, Bench, ended, forked
from workloads.library.tests.processes import rss_mib

LANES = 6  # drains side by side: they sleep
DRAIN_BATCH_S = 1.0
SAMPLE_S = 0.25


def drains(bench: Bench, times: int) -> dict[str, Any]:
    """SIGTERM at a random moment of micro-batches that last a second; the time until the process is gone."""
    shares = [len(range(lane, times, LANES)) for lane in range(LANES)]
    for lane, share in enumerate(shares):
        bench.fill(_lane(lane), 20 * max(1, share) * BATCH)
    pids = [forked(lambda lane=lane, share=share: _drain(bench, lane, share)) for lane, share in enumerate(shares)]
    codes = [ended(pid) for pid in pids]
    assert not any(codes), codes
    seconds = sorted(s for lane in range(LANES) for s in json.loads(_measured(bench, lane).read_text()))
    jobs = [_lane(lane) for lane in range(LANES)]
    committed = sum(e["items"] for job in jobs for e in bench.events(job) if e["event"] == "stored")
    return {
        "drains": len(seconds),
        "drain_p50_s": round(statistics.median(seconds), 2),
        "drain_p99_s": round(seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))], 2),
        "drain_longest_s": round(seconds[-1], 2),
        "drain_recommitted": committed - sum(bench.done(job) for job in jobs),
    }


def _drain(bench: Bench, lane: int, times: int) -> int:
    seconds: list[float] = []
    for number in range(times):
        seen = _stored(bench, lane)
        pid = forked(lambda: bench.work_as_shipped(_lane(lane), DRAIN_BATCH_S, Shutdown().install()))
        while _stored(bench, lane) == seen:
            time.sleep(0.01)
        time.sleep(DRAIN_BATCH_S * ((number * LANES + lane) * 0.618 % 1))  # spread over a micro-batch
        began = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        code = ended(pid)
        assert code == EXIT_PREEMPTED, code
        seconds.append(time.monotonic() - began)
    _measured(bench, lane).write_text(json.dumps(seconds))
    return 0


def _lane(lane: int) -> str:
    return f"drains-{lane}"


def _measured(bench: Bench, lane: int) -> Path:
    return bench.folder / f"drains-{lane}.json"


def _stored(bench: Bench, lane: int) -> int:
    path = bench.folder / f"{_lane(lane)}.jsonl"
    return path.read_text().count('"event": "stored"') if path.exists() else 0


def long_run(bench: Bench, count: int) -> dict[str, Any]:
    """Enqueue and drain with a predictor that costs nothing; the rate and memory of both."""
    began = time.monotonic()
    enqueue_mib, code = _watched(forked(lambda: bench.fill("long", count)))
    seconds = time.monotonic() - began
    assert code == 0, code
    memory_mib, code = _watched(forked(lambda: bench.work_as_shipped("long", 0.0)))
    assert code == EXIT_COMPLETE, code
    return {
        "long_items": count,
        "long_enqueue_items_per_s": round(count / seconds),
        "long_drain_items_per_s": round(bench.rate("long", count)),
        "long_done": bench.done("long"),
        "long_memory_mib": max(memory_mib),
        "long_memory_growth_mib": _growth(memory_mib),
        "enqueue_memory_mib": max(enqueue_mib),
        "enqueue_memory_growth_mib": _growth(enqueue_mib),
    }


def _watched(pid: int) -> tuple[list[float], int]:
    """Resident memory of a process and its children now and then until it ends, and its exit code."""
    samples: list[float] = []
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return samples, os.waitstatus_to_exitcode(status)
        samples.append(round(rss_mib(pid, with_children=True), 1))
        time.sleep(SAMPLE_S)


def _growth(samples: list[float]) -> float:
    """From the end of the first tenth, when all is loaded, to the highest after it."""
    early = len(samples) // 10
    return round(max(samples[early:]) - samples[early], 1)
