"""`python -m workloads.library.tests.bench.training [--only PART ...]`: the training runtime's numbers, in about 80 minutes.

Stops under an upload in flight, the price of asking, the plan that Ray published, restarts in parts and goodput under
evictions, both beside the naive twin and beside torchrun with dcp.async_save, in turns for half an hour; and one run
of half an hour for each. `--only kills` plays the kill matrix, which `make kill-matrix` does at length. Prints tables, then
one JSON line.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.runtime.shutdown import Shutdown
from holdfast.runtime.stop import StopAgreement
from workloads.library.tests.bench import kill_matrix
from workloads.library.tests.bench.kill_lane import Results
from workloads.library.tests.bench.training_goodput import (
    LONGEST_SLICE_S,
    OURS,
    SLICE_S,
    THEIRS,
    TORCHRUN,
    WINDOW_S,
    goodput,
    longest,
)
from workloads.library.tests.bench.training_published import NOTICED, published_plan
from workloads.library.tests.bench.training_restarts import restarts
from workloads.library.tests.bench.training_stops import stops

BY_DEFAULT = ("stops", "asking", "plan", "restarts", "goodput", "longest")
PARTS = (*BY_DEFAULT, "kills")
STARTUP_PARTS = {"interpreter", "torch import", "rendezvous", "corpus", "restore", "first step"}
"""The parts of a restart that have to be named."""
RESTART_S = 2.0
GOODPUT_MINUTES = 10


class CountingStore:
    """A torch store that counts requests by thread."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.by_thread: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)

        def counted(*args: Any) -> Any:
            thread = threading.current_thread().name
            self.by_thread[thread] = self.by_thread.get(thread, 0) + 1
            return operation(*args)

        return counted


def price_of_asking(calls: int = 200_000) -> dict[str, Any]:
    """Microseconds of one should_stop, and what the asking thread asked of the store: nothing."""
    from torch.distributed import TCPStore

    store = CountingStore(TCPStore("127.0.0.1", 0, is_master=True))
    agreement = StopAgreement(store, rank=0, world_size=2, shutdown=Shutdown())
    began, busy = time.perf_counter(), time.thread_time()
    for step in range(calls):
        agreement.should_stop(step)
    took, busy = time.perf_counter() - began, time.thread_time() - busy
    return {
        "check_us": round(busy / calls * 1e6, 2),
        "store_requests_per_step": store.by_thread.get("MainThread", 0) / calls,
        "watcher_requests_per_s": round(store.by_thread.get("stop-agreement", 0) / took, 1),
        "collectives": 0 if store.by_thread.keys() <= {"stop-agreement"} else 1,
    }


def kills(folder: Path, wanted: int) -> dict[str, Any]:
    folder.mkdir()
    results = Results(path=folder / "results.jsonl")
    kill_matrix.play(folder, results, kills=wanted, seed=1, minutes=float("inf"))
    return kill_matrix.verdict(results, wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--evictions", type=int, default=2, help="of each variant with each seed")
    parser.add_argument("--seeds", type=int, default=3, help="of the order and the moments of evictions")
    parser.add_argument("--slice", type=float, default=SLICE_S, help="seconds from a start to its eviction")
    parser.add_argument("--longest-slice", type=float, default=LONGEST_SLICE_S, help="the same, of the longest runs")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=BY_DEFAULT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        parts: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
            "stops": ("SIGTERM under uploads", lambda: stops(folder / "stops", options.samples)),
            "kills": ("power losses", lambda: kills(folder / "kills", options.kills)),
            "asking": ("asking whether to stop", price_of_asking),
            "plan": ("Ray's published plan", lambda: published_plan(folder / "plan")),
            "restarts": ("restarts, s", lambda: restarts(folder / "restarts")),
            "goodput": (
                "evictions in turns",
                lambda: goodput(folder / "goodput", options.evictions, seeds=options.seeds, slice_s=options.slice),
            ),
            "longest": ("longest runs", lambda: longest(folder / "longest", slice_s=options.longest_slice)),
        }  # those that fork come first: a fork takes one thread along
        result: dict[str, Any] = {"schema": "holdfast.bench.training/3", "load_at_start": round(os.getloadavg()[0], 1)}
        for part, (title, measure) in parts.items():
            if part in options.only:
                result[part] = _shown(title, measure())
    result["goals"] = _goals(result)
    print(json.dumps(result))
    sys.exit(0 if all(result["goals"].values()) else 1)


def _goals(result: dict[str, Any]) -> dict[str, bool]:
    goals: dict[str, bool] = {}
    if stopping := result.get("stops"):
        goals["sigterm_to_exit_under_12_s_at_p99"] = stopping["samples"] >= 100 and stopping["exit_s_p99"] < 12
        goals["exit_in_window_with_a_frozen_uploader"] = stopping["exit_s_frozen_uploader"] < WINDOW_S
        goals["consensus_within_a_step_and_1_s"] = stopping["consensus_beyond_step_s_worst"] <= 1
    if asking := result.get("asking"):
        goals["check_under_20_us"] = asking["check_us"] < 20
        goals["no_collectives"] = asking["collectives"] == 0 and asking["store_requests_per_step"] == 0
    if again := result.get("restarts"):
        goals["restart_in_parts"] = set(again["parts"]) >= STARTUP_PARTS and sum(again["parts"].values()) > 0.9 * min(
            again["first_step_s"].values()
        )
        goals["restart_under_2_s"] = again["first_step_s"]["holdfast"] < RESTART_S
        goals["restart_below_torchruns"] = again["first_step_s"]["holdfast"] < again["first_step_s"][TORCHRUN]
    if plan := result.get("plan"):
        goals["no_step_of_the_published_plan_wasted"] = plan["wasted_steps"][NOTICED] == 0
    if found := result.get("goodput"):
        goals["goodput_above_naive"] = found["above"][THEIRS]["mean"] > 0
        goals["goodput_above_dcp"] = found["above"][TORCHRUN]["mean"] > 0
        goals["goodput_of_10_minutes_a_side"] = min(found["minutes"].values()) >= GOODPUT_MINUTES
    for part in ("goodput", "longest"):
        if interval := result.get(part, {}).get("interval"):
            goals[f"{part}_intervals_apart_from_naive"] = interval[OURS][0] > interval[THEIRS][1]
    return goals | result.get("kills", {}).get("goals", {})


def _shown(title: str, values: dict[str, Any]) -> dict[str, Any]:
    print(f"\n{title}")
    for name, value in values.items():
        for label, number in value.items() if isinstance(value, dict) else [("", value)]:
            print(f"  {name + (' ' + label if label else ''):44s}{number!s:>12s}", flush=True)
    return values


if __name__ == "__main__":
    main()
