"""SIGTERM while an upload is in flight: how soon the ranks agree, and how soon the pod is gone."""

import contextlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from holdfast.report.capacity import at
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


def one_stop(folder: Path, server: ForkServer, *, frozen: bool) -> Stop:
    """SIGTERM while every step starts an upload; the worst upload in flight is one that never moves
    again: `frozen`.
    """
    run = Run(folder=folder, steps=ENDLESS, every=1, server=server)
    with run.started() as process:
        run.wait_for_step(process, 8)
        with _frozen_uploaders(process.pid) if frozen else contextlib.nullcontext():
            noticed_at = time.time()
            notice(process)
            process.wait(PATIENCE_S)
            exit_s = time.time() - noticed_at
    (*_, stopped) = run.of("stop") or [{"t": noticed_at + exit_s}]
    step_s = statistics.median(e["seconds"] for e in run.of("window")[2:])
    return Stop(
        frozen=frozen,
        exit_s=exit_s,
        consensus_beyond_step_s=stopped["t"] - noticed_at - step_s,
    )


@contextlib.contextmanager
def _frozen_uploaders(agent: int) -> Iterator[None]:
    uploaders = []
    for rank in psutil.Process(agent).children():
        for child in rank.children():
            uploaders.append(child)
    each(uploaders, psutil.Process.suspend)
    try:
        yield
    finally:
        each(uploaders, psutil.Process.kill)


def stops(folder: Path, samples: int) -> dict[str, Any]:
    """Two pods at a time on whatever cores there are: the figures are those of a busy machine."""
    folder.mkdir()
    found = Records(folder / "stops.jsonl")

    def lane(number: int) -> None:
        with run_server() as server:
            for n in range(number, samples + LANES, LANES):
                found.add(one_stop(folder / str(n), server, frozen=n >= samples))

    side_by_side(LANES, lane)
    taken = [stop for stop in found.of(Stop) if not stop.frozen]
    exits = sorted(stop.exit_s for stop in taken)
    return {
        "samples": len(taken),
        "exit_s_p99": round(at(exits, 99), 2),  # the worst of fewer than 100
        "exit_s_frozen_uploader": round(
            max(stop.exit_s for stop in found.of(Stop) if stop.frozen), 2
        ),
        "consensus_beyond_step_s_worst": round(
            max(stop.consensus_beyond_step_s for stop in taken), 3
        ),
    }
