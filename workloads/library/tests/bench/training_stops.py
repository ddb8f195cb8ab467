"""SIGTERM during an upload: the time until the ranks agree, and until the pod has ended."""

import contextlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from holdfast.report.capacity import percentile
from workloads.library.tests.bench.kill_lane import Records, side_by_side
from workloads.library.tests.bench.training_goodput import ENDLESS
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.processes import each
from workloads.library.tests.training.runs import PATIENCE_S, Run, notice, run_server

LANES = 2


@dataclass(frozen=True, kw_only=True)
class Stop:
    frozen: bool
    exit_s: float
    consensus_beyond_step_s: float


def measure_stop(folder: Path, server: ForkServer, *, frozen: bool) -> Stop:
    """Stops a run whose every step starts an upload; a frozen uploader is the worst case."""
    run = Run(
        folder=folder,
        steps=ENDLESS,
        every=1,
        server=server,
    )
    with run.started() as process:
        run.wait_for_step(process, 8)
        with _frozen_uploaders(process.pid) if frozen else contextlib.nullcontext():
            start = time.time()
            notice(process)
            process.wait(PATIENCE_S)
            end = time.time()
    agreements = run.of("stop")
    agreement = agreements[-1]["t"] if agreements else end
    windows = run.of("window")[2:]
    step_s = statistics.median(window["seconds"] for window in windows)
    return Stop(
        frozen=frozen,
        exit_s=end - start,
        consensus_beyond_step_s=agreement - start - step_s,
    )


@contextlib.contextmanager
def _frozen_uploaders(agent: int) -> Iterator[None]:
    uploaders = []
    for rank in psutil.Process(agent).children():
        uploaders += rank.children()
    each(uploaders, psutil.Process.suspend)
    try:
        yield
    finally:
        each(uploaders, psutil.Process.kill)


def stops(folder: Path, samples: int) -> dict[str, Any]:
    """Stops two pods at a time on all cores: the figures are those of a busy machine."""
    folder.mkdir()
    records = Records(folder / "stops.jsonl")

    def lane(number: int) -> None:
        with run_server() as server:
            for n in range(number, samples + LANES, LANES):
                records.add(measure_stop(folder / str(n), server, frozen=n >= samples))

    side_by_side(LANES, lane)
    exits_s = []
    frozen_s = []
    consensus_s = []
    for stop in records.of(Stop):
        if stop.frozen:
            frozen_s.append(stop.exit_s)
        else:
            exits_s.append(stop.exit_s)
            consensus_s.append(stop.consensus_beyond_step_s)
    exits_s.sort()
    return {
        "samples": len(exits_s),
        "exit_s_p99": round(percentile(exits_s, 99), 2),  # the worst of fewer than 100
        "exit_s_frozen_uploader": round(max(frozen_s), 2),
        "consensus_beyond_step_s_worst": round(max(consensus_s), 3),
    }
