"""The training runtime's numbers, in about 80 minutes.

    python -m workloads.library.tests.bench.training [--only PART ...]

Stops during an upload, the cost of should_stop, and the plan that Ray published. Restarts in parts
and goodput under evictions, compared with the naive twin and with torchrun and dcp.async_save, in
turns for half an hour; and one run of an hour for each. --evictions counts those of each variant
with each seed, which sets the order and the moments; a slice lasts from a start to its eviction.
"""

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
from workloads.library.tests.bench.result import Goals, finish, options, rows
from workloads.library.tests.bench.training_goodput import (
    LONGEST_SLICE_S,
    OURS,
    SLICE_S,
    THEIRS,
    TORCHRUN,
    WINDOW_S,
    goodput,
    longest,
    restarts,
)
from workloads.library.tests.bench.training_published import NOTICED, run_ray_plan
from workloads.library.tests.bench.training_stops import stops

STARTUP_PARTS = {"interpreter", "torch import", "rendezvous", "corpus", "restore", "first step"}
"""The parts of a restart that must be named."""
RESTART_S = 2.0
GOODPUT_MINUTES = 10


class CountingStore:
    """A torch store that counts requests of the thread that made it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._asking = threading.current_thread()
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        self.requests += threading.current_thread() is self._asking
        return getattr(self._store, name)


def measure_stop_checks(calls: int = 200_000) -> dict[str, Any]:
    """Measures microseconds of one should_stop, and its thread's requests to the store.

    There is no process group, so a collective would fail.
    """
    from torch.distributed import TCPStore

    store = CountingStore(TCPStore("127.0.0.1", 0, is_master=True))
    agreement = StopAgreement(
        store,
        rank=0,
        world_size=2,
        shutdown=Shutdown(),
    )
    start = time.thread_time()
    for step in range(calls):
        agreement.should_stop(step)
    cpu_s = time.thread_time() - start
    return {
        "check_us": round(cpu_s / calls * 1e6, 2),
        "store_requests_per_step": store.requests / calls,
    }


GOALS: Goals = {
    "stops": {
        "sigterm_to_exit_under_12_s_at_p99": lambda f: f["samples"] >= 100 and f["exit_s_p99"] < 12,
        "exit_in_window_with_a_frozen_uploader": lambda f: f["exit_s_frozen_uploader"] < WINDOW_S,
        "consensus_within_a_step_and_1_s": lambda f: f["consensus_beyond_step_s_worst"] <= 1,
    },
    "asking": {
        "check_under_20_us": lambda f: f["check_us"] < 20,
        "no_collectives": lambda f: f["store_requests_per_step"] == 0,
    },
    "restarts": {
        "restart_in_parts": lambda f: _parts_explain(f["parts"], f["first_step_s"]),
        "restart_under_2_s": lambda f: f["first_step_s"]["holdfast"] < RESTART_S,
        "restart_below_torchruns": lambda f: (
            f["first_step_s"]["holdfast"] < f["first_step_s"][TORCHRUN]
        ),
    },
    "plan": {"no_step_of_the_published_plan_wasted": lambda f: f["wasted_steps"][NOTICED] == 0},
    "goodput": {
        "goodput_above_naive": lambda f: f["above"][THEIRS] > 0,
        "goodput_above_dcp": lambda f: f["above"][TORCHRUN] > 0,
        "goodput_of_10_minutes_a_side": lambda f: min(f["minutes"].values()) >= GOODPUT_MINUTES,
        "goodput_intervals_apart_from_naive": lambda f: (
            f["interval"][OURS][0] > f["interval"][THEIRS][1]
        ),
    },
    "longest": {
        "longest_intervals_apart_from_naive": lambda f: (
            f["interval"][OURS][0] > f["interval"][THEIRS][1]
        )
    },
}


def _parts_explain(parts: dict[str, float], first_step_s: dict[str, float]) -> bool:
    """Tells whether the parts are named and make up 90 % of the fastest restart."""
    if not parts.keys() >= STARTUP_PARTS:
        return False
    return sum(parts.values()) > 0.9 * min(first_step_s.values())


def main() -> None:
    arguments = options(
        __doc__,
        samples=100,
        evictions=2,
        seeds=3,
        slice=SLICE_S,
        longest_slice=LONGEST_SLICE_S,
        only=(*GOALS,),
    )
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "stops": lambda: stops(folder / "stops", arguments.samples),
            "asking": measure_stop_checks,
            "plan": lambda: run_ray_plan(folder / "plan"),
            "restarts": lambda: restarts(folder / "restarts"),
            "goodput": lambda: goodput(
                folder / "goodput",
                arguments.evictions,
                seeds=arguments.seeds,
                slice_s=arguments.slice,
            ),
            "longest": lambda: longest(folder / "longest", slice_s=arguments.longest_slice),
        }  # Parts that fork come first: a fork keeps one thread only.
        result: dict[str, Any] = {
            "schema": "holdfast.bench.training/3",
            "load_at_start": round(os.getloadavg()[0], 1),
        }
        for part in parts:
            if part not in arguments.only:
                continue
            result[part] = parts[part]()
            print(*rows({part: result[part]}), sep="\n", file=sys.stderr, flush=True)
    goals: dict[str, bool | str] = {}
    for part, tests in GOALS.items():
        if part in result:
            for goal, is_met in tests.items():
                goals[goal] = is_met(result[part])
    finish(result, goals)


if __name__ == "__main__":
    main()
