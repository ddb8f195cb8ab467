"""Throughput, drain time and memory of the batch worker.

    python -m tests.bench.batch                              # a few minutes
    python -m tests.bench.batch --items 1000000 --drains 100 # what `make bench-batch` runs
    python -m tests.bench.batch --parts gpu_like free_pubsub # some of it

Ends with one JSON line; `goals` says true or false for each number that is promised. Durable settings: the
database fsyncs. Pub/Sub figures are of PUBSUB_EMULATOR_HOST where that is set, else of the shipped broker.
"""

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench.batch_long import drains, long_run
from tests.bench.batch_parts import Bench
from tests.bench.batch_rates import free_postgres, free_pubsub, gpu_like
from workloads.inference import schema
from workloads.inference.connect import connect
from workloads.inference.database import EmbeddedPostgres

PARTS = ("gpu_like", "drains", "long", "free_postgres", "free_pubsub")
MEMORY_GROWTH_MIB = 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=50_000, help="of the long run with a predictor that costs nothing")
    parser.add_argument("--drains", type=int, default=20)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
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
            "long": lambda: long_run(bench, options.items),
            "free_postgres": lambda: free_postgres(bench),
            "free_pubsub": lambda: free_pubsub(bench),
        }
        for part in options.parts:
            figures |= measured[part]()
    goals = verdict(figures)
    for name, value in figures.items():
        print(f"{name:<34} {value}")
    print(json.dumps({**figures, "goals": goals}))
    return 0 if all(goals.values()) else 1


def verdict(figures: dict[str, Any]) -> dict[str, bool]:
    """Of the parts that were measured."""
    goals: dict[str, bool] = {}
    if "bare_items_per_s" in figures:
        goals["throughput_95_percent"] = figures["ours_share_of_bare_loop"] >= 0.95
    if "drains" in figures:
        goals["drain_p99_under_5_s"] = figures["drain_p99_s"] < 5.0
        goals["drain_redoes_nothing_committed"] = figures["drain_recommitted"] == 0
    if "long_items" in figures:
        goals["long_run_complete"] = figures["long_done"] == figures["long_items"]
        goals["memory_flat"] = figures["long_memory_growth_mib"] < MEMORY_GROWTH_MIB
    return goals


if __name__ == "__main__":
    sys.exit(main())
