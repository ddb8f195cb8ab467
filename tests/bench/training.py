"""`python -m tests.bench.training [--samples N] [--evictions N]`: the training runtime's numbers.

Stops under an upload in flight, the price of asking, the parts of a restart, and goodput under an eviction
every minute beside the naive twin and beside torchrun with dcp.async_save. Prints tables, then one JSON line.
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.bench.training_goodput import ENDLESS, WINDOW_S, goodput
from tests.workloads.training.runs import PATIENCE_S, Run, notice
from tests.workloads.training.warm import Fork, WarmRun, prepare
from workloads.runtime.shutdown import Shutdown
from workloads.runtime.stop import StopAgreement

LANES = 2


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    exit_s: float
    consensus_s: float
    extra_steps: int
    step_s: float
    committed: bool
    frozen: bool
    """Whether the uploaders stood still."""


def one_stop(folder: Path, *, frozen: bool = False) -> Stop:
    """SIGTERM while every step starts an upload; the worst upload in flight is one that never moves again."""
    run = WarmRun(folder=folder, steps=ENDLESS, every=1)
    with run.started() as process:
        run.wait_for_step(process, 8)
        with _frozen_uploaders(process.pid) if frozen else contextlib.nullcontext():
            before, told = max(e["last_step"] for e in run.of("window")), time.time()
            notice(process)
            process.wait(PATIENCE_S)
            exit_s = time.time() - told
    stops, windows = run.of("stop"), run.of("window")[2:]
    stopped = stops[-1] if stops else {"t": told + exit_s, "step": before}
    return Stop(
        exit_s=exit_s,
        consensus_s=stopped["t"] - told,
        extra_steps=stopped["step"] - before,
        step_s=statistics.median(e["seconds"] for e in windows),
        committed=any(e["step"] == stopped["step"] for e in run.of("commit")),
        frozen=frozen,
    )


@contextlib.contextmanager
def _frozen_uploaders(agent: int) -> Iterator[None]:
    ranks = psutil.Process(agent).children()
    uploaders = [child for rank in ranks for child in rank.children()]
    for uploader in uploaders:
        uploader.suspend()
    try:
        yield
    finally:
        for uploader in uploaders:
            with contextlib.suppress(psutil.NoSuchProcess):
                uploader.kill()


def stops(folder: Path, samples: int) -> dict[str, Any]:
    """Two pods at a time on whatever cores there are: the figures are those of a busy machine."""
    found = folder / "stops.jsonl"

    def lane(number: int) -> None:
        for n in range(number, samples + LANES, LANES):
            stop = one_stop(folder / str(n), frozen=n >= samples)
            with found.open("a") as file:
                file.write(json.dumps(asdict(stop)) + "\n")

    folder.mkdir()
    prepare()
    lanes = [Fork(partial(lane, number)) for number in range(LANES)]
    if any([fork.wait() for fork in lanes]):
        raise RuntimeError("a stop failed")
    every = [Stop(**json.loads(line)) for line in found.read_text().splitlines()]
    taken = [stop for stop in every if not stop.frozen]
    exits = sorted(stop.exit_s for stop in taken)
    return {
        "samples": len(taken),
        "exit_s_median": round(statistics.median(exits), 2),
        "exit_s_p99": round(exits[math.ceil(0.99 * len(exits)) - 1], 2),  # the worst of fewer than 100
        "exit_s_worst": round(exits[-1], 2),
        "exit_s_frozen_uploader": round(max(stop.exit_s for stop in every if stop.frozen), 2),
        "consensus_beyond_step_s_worst": round(max(s.consensus_s - s.step_s for s in taken), 3),
        "extra_steps_worst": max(stop.extra_steps for stop in taken),
        "last_step_committed": sum(stop.committed for stop in taken),
    }


def start_parts(folder: Path, starts: int = 4) -> dict[str, float]:
    """Median seconds of each part of a restart that restores a checkpoint."""
    run = Run(folder=folder, steps=5, every=5)
    run.complete()
    for n in range(starts):
        run.steps = 6 + n
        run.complete()
    told = [event["phases"] for event in run.of("startup")[1:]]
    return {name: round(statistics.median(phases[name] for phases in told), 2) for name in told[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--evictions", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=("stops", "asking", "restart_s", "goodput"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        parts: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
            "stops": (
                "SIGTERM under uploads",
                lambda: stops(folder / "stops", options.samples),
            ),  # forks: no thread yet
            "asking": ("asking whether to stop", price_of_asking),
            "restart_s": ("parts of a restart, s", lambda: start_parts(folder / "starts")),
            "goodput": ("an eviction every minute", lambda: goodput(folder / "goodput", options.evictions)),
        }
        result: dict[str, Any] = {"schema": "holdfast.bench.training/1", "load_at_start": round(os.getloadavg()[0], 1)}
        for part in options.only or parts:
            title, measure = parts[part]
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
    if share := result.get("goodput", {}).get("share"):
        goals["goodput_above_naive"] = share["holdfast"] > share["naive"]
        goals["goodput_above_dcp"] = share["holdfast"] > share["torchrun + dcp.async_save"]
    return goals


def _shown(title: str, values: dict[str, Any]) -> dict[str, Any]:
    print(f"\n{title}")
    for name, value in values.items():
        for label, number in value.items() if isinstance(value, dict) else [("", value)]:
            print(f"  {name + (' ' + label if label else ''):44s}{number!s:>12s}", flush=True)
    return values


if __name__ == "__main__":
    main()
