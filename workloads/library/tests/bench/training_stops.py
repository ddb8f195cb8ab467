"""SIGTERM while an upload is in flight: how soon the ranks agree, and how soon the pod is gone."""

import contextlib
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from holdfast.report.capacity import at
from workloads.library.tests.bench.kill_lane import side_by_side
from workloads.library.tests.bench.training_goodput import ENDLESS
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.processes import each
from workloads.library.tests.training.runs import PATIENCE_S, Run, notice, run_server

LANES = 2


def one_stop(folder: Path, server: ForkServer, *, frozen: bool) -> dict[str, Any]:
    """SIGTERM while every step starts an upload; the worst upload in flight is one that never moves again: `frozen`."""
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
    return {
        "frozen": frozen,
        "exit_s": exit_s,
        "consensus_beyond_step_s": stopped["t"] - noticed_at - step_s,
    }


@contextlib.contextmanager
def _frozen_uploaders(agent: int) -> Iterator[None]:
    uploaders = [child for rank in psutil.Process(agent).children() for child in rank.children()]
    each(uploaders, psutil.Process.suspend)
    try:
        yield
    finally:
        each(uploaders, psutil.Process.kill)


def stops(folder: Path, samples: int) -> dict[str, Any]:
    """Two pods at a time on whatever cores there are: the figures are those of a busy machine."""
    found = folder / "stops.jsonl"

    def lane(number: int) -> None:
        with run_server() as server, found.open("a") as file:
            for n in range(number, samples + LANES, LANES):
                stop = one_stop(folder / str(n), server, frozen=n >= samples)
                file.write(json.dumps(stop) + "\n")
                file.flush()

    folder.mkdir()
    side_by_side(LANES, lane)
    every = [json.loads(line) for line in found.read_text().splitlines()]
    taken = [stop for stop in every if not stop["frozen"]]
    exits = sorted(stop["exit_s"] for stop in taken)
    return {
        "samples": len(taken),
        "exit_s_p99": round(at(exits, 99), 2),  # the worst of fewer than 100
        "exit_s_frozen_uploader": round(max(stop["exit_s"] for stop in every if stop["frozen"]), 2),
        "consensus_beyond_step_s_worst": round(max(stop["consensus_beyond_step_s"] for stop in taken), 3),
    }
