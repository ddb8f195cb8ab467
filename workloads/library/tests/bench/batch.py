"""Throughput, drain time, kills and memory of the batch worker: every number that is promised, in
one run.

    python -m workloads.library.tests.bench.batch                              # what `make bench-batch` runs: 10 minutes
    python -m workloads.library.tests.bench.batch --items 50000 --drains 20 --kills 60
    python -m workloads.library.tests.bench.batch --sections gpu_like long       # some of it

Ends with one JSON line; `goals` says true, false or "not run" for each number that is promised.
Durable settings: the database fsyncs.
"""

import json
import subprocess
import sys
import time
from typing import Any

from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE
from workloads.library.tests.bench.batches.drains import drain_phases, drains
from workloads.library.tests.bench.batches.harness import Bench, database
from workloads.library.tests.bench.batches.kills import GOALS
from workloads.library.tests.bench.batches.predictors import Fixed
from workloads.library.tests.bench.result import Goals, ended, judged, options, played
from workloads.library.tests.processes import rss_mib, sampled

SECTIONS = ("gpu_like", "drains", "drain_phases", "kills", "long")
MEMORY_GROWTH_MIB = 64
BATCH = 32
BATCH_S = 0.020


def main() -> None:
    o = options(
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
            "drains": lambda: drains(bench, o.drains),
            "drain_phases": lambda: drain_phases(bench, o.phase_drains),
            "kills": lambda: kills(o.kills),
            "long": lambda: long_run(bench, o.items),
        }
        figures = played(sections, o.sections)
    ended(figures, judged(goals(o.items, o.drains, o.kills), figures))


def gpu_like(bench: Bench, batches: int = 500) -> dict[str, Any]:
    """20 ms for 32 items: ours, beside the bare loop."""
    count = batches * BATCH
    device = Fixed(PredictorSpec(name="fixed", model=str(BATCH_S)))
    began = time.monotonic()
    for _ in range(batches):
        device.predict([b""] * BATCH)
    bare = count / (time.monotonic() - began)
    bench.fill("ours", count)
    assert bench.worker("ours", Fixed, BATCH_S).wait() == EXIT_COMPLETE
    ours = bench.rate("ours", count)
    return {
        "bare_items_per_s": round(bare),
        "ours_items_per_s": round(ours),
        "ours_share_of_bare_loop": round(ours / bare, 4),
    }


def long_run(bench: Bench, count: int) -> dict[str, Any]:
    """Enqueue and drain with a predictor that costs nothing; the rate and memory of both."""
    source = bench.folder / "long.source.jsonl"
    with source.open("w") as file:
        file.writelines(
            f'{{"id": {number}, "text": "document {number}"}}\n' for number in range(count)
        )
    began = time.monotonic()
    enqueue_mib = watched(
        bench.start("enqueue", "long", "--source", str(source), "--body-column", "text")
    )
    seconds = time.monotonic() - began
    memory_mib = watched(bench.worker("long", Fixed, 0.0))
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


def watched(process: subprocess.Popen[bytes]) -> list[float]:
    """Resident memory of a command and its children now and then until it is complete."""
    with sampled(lambda: round(rss_mib(process.pid, with_children=True), 1), 0.25) as seen:
        code = process.wait()
    assert code == EXIT_COMPLETE, code
    return seen


def growth(samples: list[float]) -> float:
    """From the end of the first tenth, when all is loaded, to the highest after it."""
    early = len(samples) // 10
    return round(max(samples[early:]) - samples[early], 1)


def kills(count: int) -> dict[str, Any]:
    """In a process of its own: it forks, and must hold no threads."""
    command = [
        sys.executable,
        "-m",
        "workloads.library.tests.bench.batches.kills",
        "--kills",
        str(count),
    ]
    stdout = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(stdout.splitlines()[-1])
    return {f"kills_{name}" if name != "kills" else name: value for name, value in found.items()}


def goals(items: int, drains: int, kills: int) -> Goals:
    of_kills = {f"kills_{kills}" if name == "kills" else f"kills_{name}": name for name in GOALS}
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
            "memory_flat": lambda f: f["long_memory_growth_mib"] < MEMORY_GROWTH_MIB,
            "enqueue_memory_flat": lambda f: f["enqueue_memory_growth_mib"] < MEMORY_GROWTH_MIB,
        },
        "kills": {
            goal: lambda f, name=name: f["kills_goals"][name] for goal, name in of_kills.items()
        },
    }


if __name__ == "__main__":
    main()
