"""Throughput, drain time, kills and memory of the batch worker: every promised number in one run.

`make bench-batch` runs all of it, in 10 minutes. Parts and smaller forms:

    python -m workloads.library.tests.bench.batch --items 50000 --drains 20 --kills 60
    python -m workloads.library.tests.bench.batch --sections gpu_like long

The settings are durable: the database fsyncs.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE
from workloads.library.tests.bench.batches.drains import drain_phases, drains
from workloads.library.tests.bench.batches.harness import Bench, database
from workloads.library.tests.bench.batches.kills import GOALS
from workloads.library.tests.bench.batches.predictors import Fixed
from workloads.library.tests.bench.result import Goals, finish, judge_goals, options, run_sections
from workloads.library.tests.processes import rss_mib, sampled

SECTIONS = ("gpu_like", "drains", "drain_phases", "kills", "long")
MEMORY_GROWTH_MIB = 64
BATCH = 32
BATCH_S = 0.020


def main() -> None:
    arguments = options(
        __doc__,
        items=1_000_000,
        drains=100,
        phase_drains=30,
        kills=500,
        sections=SECTIONS,
    )
    with database() as bench:
        sections = {
            "gpu_like": lambda: gpu_like(bench),
            "drains": lambda: drains(bench, arguments.drains),
            "drain_phases": lambda: drain_phases(bench, arguments.phase_drains),
            "kills": lambda: kills(arguments.kills),
            "long": lambda: long_run(bench, arguments.items),
        }
        figures = run_sections(sections, arguments.sections)
    tests = goals(arguments.items, arguments.drains, arguments.kills)
    finish(figures, judge_goals(tests, figures))


def gpu_like(bench: Bench, batches: int = 500) -> dict[str, Any]:
    """Compares the worker with a bare loop, on a device that takes 20 ms for 32 items."""
    count = batches * BATCH
    device = Fixed(PredictorSpec(name="fixed", model=str(BATCH_S)))
    start = time.monotonic()
    for _ in range(batches):
        device.predict([b""] * BATCH)
    bare_rate = count / (time.monotonic() - start)
    bench.fill("ours", count)
    assert bench.worker("ours", Fixed, BATCH_S).wait() == EXIT_COMPLETE
    worker_rate = bench.rate("ours", count)
    return {
        "bare_items_per_s": round(bare_rate),
        "ours_items_per_s": round(worker_rate),
        "ours_share_of_bare_loop": round(worker_rate / bare_rate, 4),
    }


def long_run(bench: Bench, count: int) -> dict[str, Any]:
    """Measures rate and memory of enqueue and drain, with a predictor that costs nothing."""
    source = bench.folder / "long.source.jsonl"
    with source.open("w") as file:
        for number in range(count):
            file.write(f'{{"id": {number}, "text": "document {number}"}}\n')
    start = time.monotonic()
    enqueue = bench.start("enqueue", "long", "--source", str(source), "--body-column", "text")
    enqueue_mib = sample_memory(enqueue)
    seconds = time.monotonic() - start
    memory_mib = sample_memory(bench.worker("long", Fixed, 0.0))
    return {
        "long_items": count,
        "long_enqueue_items_per_s": round(count / seconds),
        "long_drain_items_per_s": round(bench.rate("long", count)),
        "long_done": bench.done("long"),
        "long_memory_mib": max(memory_mib),
        "long_memory_growth_mib": growth(memory_mib),
        "enqueue_memory_mib": max(enqueue_mib),
        "enqueue_memory_growth_mib": growth(enqueue_mib),
    }


def sample_memory(process: subprocess.Popen[bytes]) -> list[float]:
    """Samples resident memory of a command and its children until it completes, in MiB."""
    with sampled(lambda: round(rss_mib(process.pid, with_children=True), 1), 0.25) as samples:
        code = process.wait()
    assert code == EXIT_COMPLETE, code
    return samples


def growth(samples: list[float]) -> float:
    """Returns the peak after the first tenth, when all is loaded, less the value at its end."""
    early = len(samples) // 10
    return round(max(samples[early:]) - samples[early], 1)


def kills(count: int) -> dict[str, Any]:
    """Runs the kills in a separate process, because they fork and so must hold no threads."""
    command = [
        sys.executable,
        "-m",
        "workloads.library.tests.bench.batches.kills",
        "--kills",
        str(count),
    ]
    stdout = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
    figures = json.loads(stdout.splitlines()[-1])
    result = {}
    for name, value in figures.items():
        if name != "kills":
            result[f"kills_{name}"] = value
    return {"kills": figures["kills"]} | result


def goals(items: int, drains: int, kills: int) -> Goals:
    kill_goals: dict[str, Callable[[Any], bool]] = {}
    for name in GOALS:
        goal = f"kills_{kills}" if name == "kills" else f"kills_{name}"
        kill_goals[goal] = lambda f, name=name: f["kills_goals"][name]
    return {
        "gpu_like": {"throughput_95_percent": lambda f: f["ours_share_of_bare_loop"] >= 0.95},
        "drains": {
            f"drain_p99_under_5_s_of_{drains}": lambda f: f["drain_p99_s"] < 5.0,
            "drain_redoes_nothing_committed": lambda f: f["drain_recommitted"] == 0,
        },
        "drain_phases": {
            "drain_p99_under_5_s_in_every_phase": lambda f: f["drain_phases_worst_p99_s"] < 5.0
        },
        "long": {
            f"long_run_of_{items}_complete": lambda f: f["long_done"] == items,
            "enqueue_faster_than_drain": lambda f: (
                f["long_enqueue_items_per_s"] > f["long_drain_items_per_s"]
            ),
            "memory_flat": lambda f: f["long_memory_growth_mib"] < MEMORY_GROWTH_MIB,
            "enqueue_memory_flat": lambda f: f["enqueue_memory_growth_mib"] < MEMORY_GROWTH_MIB,
        },
        "kills": kill_goals,
    }


if __name__ == "__main__":
    main()
