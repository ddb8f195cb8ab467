"""`python -m tests.bench.training [--samples N] [--wall S]`: the training runtime's numbers.

Stops under an upload in flight, the price of asking, the parts of a restart, and goodput under an eviction
every minute beside the naive twin and beside torchrun with dcp.async_save. Prints tables, then one JSON line.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.workloads.training.runs import NAIVE, PATIENCE_S, Run, notice
from workloads.runtime.shutdown import Shutdown
from workloads.runtime.stop import StopAgreement

WINDOW_S = 15.0
EVICT_EVERY_S = 60.0
ENDLESS = 10_000_000


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


def one_stop(folder: Path, down: Callable[[subprocess.Popen[str]], object] = notice) -> tuple[Stop, Run]:
    """SIGTERM while every step starts an upload."""
    run = Run(folder=folder, steps=ENDLESS, every=1)
    with run.started() as process:
        run.wait_for_step(process, 20)
        before, told = max(e["last_step"] for e in run.of("window")), time.time()
        down(process)
        process.wait(PATIENCE_S)
        exit_s = time.time() - told
    stops, windows = run.of("stop"), run.of("window")[5:]
    stopped = stops[-1] if stops else {"t": told + exit_s, "step": before}
    return Stop(
        exit_s=exit_s,
        consensus_s=stopped["t"] - told,
        extra_steps=stopped["step"] - before,
        step_s=statistics.median(e["seconds"] for e in windows),
        committed=any(e["step"] == stopped["step"] for e in run.of("commit")),
    ), run


def stop_uploaders_first(process: subprocess.Popen[str]) -> None:
    """The worst upload in flight is one that never moves again."""
    with _frozen_uploaders(process.pid):
        notice(process)
        process.wait(PATIENCE_S)


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
    taken = [one_stop(folder / str(n))[0] for n in range(samples)]
    frozen = [one_stop(folder / f"frozen-{n}", stop_uploaders_first)[0] for n in range(2)]
    exits = sorted(stop.exit_s for stop in taken)
    return {
        "samples": samples,
        "exit_s_median": round(statistics.median(exits), 2),
        "exit_s_worst": round(exits[-1], 2),
        "exit_s_frozen_uploader": round(max(stop.exit_s for stop in frozen), 2),
        "consensus_beyond_step_s_worst": round(max(s.consensus_s - s.step_s for s in taken), 3),
        "extra_steps_worst": max(stop.extra_steps for stop in taken),
        "last_step_committed": sum(stop.committed for stop in taken),
    }


def start_parts(folder: Path, starts: int = 5) -> dict[str, float]:
    """Median seconds of each part of a restart that restores a checkpoint."""
    run = Run(folder=folder, steps=5, every=5)
    run.complete()
    for n in range(starts):
        run.steps = 6 + n
        run.complete()
    told = [event["phases"] for event in run.of("startup")[1:]]
    return {name: round(statistics.median(phases[name] for phases in told), 2) for name in told[0]}


@dataclass(kw_only=True)
class Variant:
    name: str
    run: Run
    evicted: bool = True
    false_ends: int = 0

    @property
    def kept(self) -> int:
        """Steps done in the end, each counted once."""
        windows = self.run.of("window")
        return int(windows[-1]["last_step"]) if windows else 0

    @property
    def step_s(self) -> float:
        """Its own step, so that a machine with other work to do does not decide the comparison."""
        each = [e["seconds"] / (e["last_step"] - e["first_step"] + 1) for e in self.run.of("window")]
        return statistics.median(each) if each else 0.0


def goodput(folder: Path, wall_s: float) -> dict[str, Any]:
    """Share of `wall_s` that went into steps which still counted at its end."""
    options = {"steps": ENDLESS, "every": 50}
    variants = [
        Variant(name="undisturbed", run=Run(folder=folder / "undisturbed", **options), evicted=False),
        Variant(name="holdfast", run=Run(folder=folder / "holdfast", **options)),
        Variant(name="naive", run=Run(folder=folder / "naive", door=NAIVE, **options)),
        Variant(name="torchrun + dcp.async_save", run=DcpRun(folder=folder / "dcp", **options)),
    ]
    for variant in variants:
        _play(variant, wall_s)
    return {
        "wall_s": wall_s,
        "steps": {variant.name: variant.kept for variant in variants},
        "share": {variant.name: round(variant.kept * variant.step_s / wall_s, 3) for variant in variants},
        "exits_with_0": {variant.name: variant.false_ends for variant in variants},
    }


class DcpRun(Run):
    def command(self) -> list[str]:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        script = ["-m", "tests.bench.dcp_twin", str(self.folder / "checkpoints"), str(self.events_path)]
        return [*torchrun, *script, str(self.steps), str(self.every)]


def _play(variant: Variant, wall_s: float) -> None:
    """Restart at once after every eviction, as if nobody had to wait for a machine."""
    began = time.monotonic()
    ends = [began + n * EVICT_EVERY_S for n in range(1, int(wall_s // EVICT_EVERY_S) + 1)] if variant.evicted else []
    ends = [*(end for end in ends if end < began + wall_s), began + wall_s]
    while ends:
        with variant.run.started() as process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, ends[0] - time.monotonic()))
            if process.poll() is None and len(ends) > 1:
                _preempt(process)
                variant.false_ends += process.returncode == 0
        ends = [end for end in ends if end > time.monotonic()]


def _preempt(process: subprocess.Popen[str]) -> None:
    """The kubelet's way: SIGTERM to the first process, the window, SIGKILL to all."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(WINDOW_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--wall", type=float, default=200.0)
    parser.add_argument("--only", nargs="*", choices=("asking", "stops", "restart_s", "goodput"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        parts: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
            "asking": ("asking whether to stop", price_of_asking),
            "stops": ("SIGTERM under uploads", lambda: stops(folder / "stops", options.samples)),
            "restart_s": ("parts of a restart, s", lambda: start_parts(folder / "starts")),
            "goodput": ("an eviction every minute", lambda: goodput(folder / "goodput", options.wall)),
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
        goals["sigterm_to_exit_under_12_s"] = stopping["exit_s_worst"] < 12
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
