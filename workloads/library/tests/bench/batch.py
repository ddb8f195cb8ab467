"""Throughput, drain time, kills and memory of the batch worker: every number that is promised, in one run.

    python -m workloads.library.tests.bench.batch                              # what `make bench-batch` runs: 10 minutes
    python -m workloads.library.tests.bench.batch --items 50000 --drains 20 --kills 60
    python -m workloads.library.tests.bench.batch --sections gpu_like long       # some of it

Ends with one JSON line; `goals` says true, false or "not run" for each number that is promised. Durable settings: the
database fsyncs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from holdfast.contract.exit_codes import EXIT_COMPLETE
from holdfast.inference.results import schema
from holdfast.inference.results.connect import connect
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from workloads.library.tests.bench.batch_drain_phases import drain_phases
from workloads.library.tests.bench.batch_harness import BATCH, BATCH_S, Bench, Fixed, timed
from workloads.library.tests.bench.batch_kills import GOALS
from workloads.library.tests.bench.batch_long import drains, long_run

SECTIONS = ("gpu_like", "drains", "drain_phases", "kills", "long")
MEMORY_GROWTH_MIB = 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--items", type=int, default=1_000_000, help="of the long run with a predictor that costs nothing"
    )
    parser.add_argument("--drains", type=int, default=100)
    parser.add_argument("--phase-drains", type=int, default=30, help="in each phase of a worker")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-batch-bench-")))
        server = stack.enter_context(EmbeddedPostgres(folder / "db"))
        connection = stack.enter_context(connect(server.uri))
        schema.migrate(connection)
        bench = Bench(uri=server.uri, connection=connection, folder=folder)
        measured = {
            "gpu_like": lambda: gpu_like(bench),
            "drains": lambda: drains(bench, options.drains),
            "drain_phases": lambda: drain_phases(bench, options.phase_drains),
            "kills": lambda: kills(options.kills),
            "long": lambda: long_run(bench, options.items),
        }
        for section in options.sections:
            began = time.monotonic()
            figures |= measured[section]()
            figures[f"{section}_seconds"] = round(time.monotonic() - began, 1)
    goals = verdict(figures, items=options.items, drains=options.drains, kills=options.kills)
    for name, value in figures.items():
        print(f"{name:<34} {value}")
    print(json.dumps({**figures, "goals": goals}))
    return 1 if False in goals.values() else 0


def gpu_like(bench: Bench, batches: int = 500) -> dict[str, Any]:
    """20 ms for 32 items: ours, beside the bare loop."""
    count = batches * BATCH
    bare = count / timed(lambda: [Fixed(BATCH_S).predict([b""] * BATCH) for _ in range(batches)])
    bench.fill("ours", count)
    assert bench.work_as_shipped("ours", "gpu_like") == EXIT_COMPLETE
    ours = bench.rate("ours", count)
    return {
        "bare_items_per_s": round(bare),
        "ours_items_per_s": round(ours),
        "ours_share_of_bare_loop": round(ours / bare, 4),
    }


def kills(count: int) -> dict[str, Any]:
    """In a process of its own: it forks, and must hold no threads."""
    command = [sys.executable, "-m", "workloads.library.tests.bench.batch_kills", "--kills", str(count)]
    stdout = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(stdout.splitlines()[-1])
    return {f"kills_{name}" if name != "kills" else name: value for name, value in found.items()}


def verdict(figures: dict[str, Any], *, items: int, drains: int, kills: int) -> dict[str, bool | str]:
    """Every number of the promise; "not run" for what was left out."""

    def judged(section: str, name: str, holds: Callable[[Any], bool]) -> bool | str:
        return holds(figures[name]) if f"{section}_seconds" in figures else "not run"

    goals: dict[str, bool | str] = {
        "throughput_95_percent": judged("gpu_like", "ours_share_of_bare_loop", lambda share: share >= 0.95),
        f"drain_p99_under_5_s_of_{drains}": judged("drains", "drain_p99_s", lambda s: s < 5.0),
        "drain_p99_under_5_s_in_every_phase": judged("drain_phases", "drain_phases_worst_p99_s", lambda s: s < 5.0),
        "drain_redoes_nothing_committed": judged("drains", "drain_recommitted", lambda n: n == 0),
        f"long_run_of_{items}_complete": judged("long", "long_done", lambda n: n == items),
        "memory_flat": judged("long", "long_memory_growth_mib", lambda mib: mib < MEMORY_GROWTH_MIB),
        "enqueue_memory_flat": judged("long", "enqueue_memory_growth_mib", lambda mib: mib < MEMORY_GROWTH_MIB),
    }
    matrix = figures.get("kills_goals", dict.fromkeys(GOALS, "not run"))
    return {**goals, **{f"kills_{name}" if name != "kills" else f"kills_{kills}": ok for name, ok in matrix.items()}}


if __name__ == "__main__":
    sys.exit(main())
