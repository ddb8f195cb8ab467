"""Processor time and context switches of a request, of this server and of other ones.

All servers take turns with the same predictor and client; the median of the turns counts. A noisy
machine changes the times of all, so read the ratios. Each load comes again with a busy neighbor: a
process on each core that computes without a pause.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from workloads.library.tests.bench.rival_home import CannotRun
from workloads.library.tests.bench.serving.capacity import (
    BATCH,
    LITSERVE,
    OURS,
    USERS,
    Rival,
    bare_batcher,
    litserve,
    running_rival,
)
from workloads.library.tests.bench.serving.client import BODY, INFER
from workloads.library.tests.bench.serving.closed_loop import send_requests
from workloads.library.tests.inference.server.serving import serve
from workloads.library.tests.processes import family, spinning

Figures = dict[str, Any]
BARE = "bare"
UNBATCHED = "unbatched"
"""The bare batcher with batches of one."""
RATED = (UNBATCHED, OURS, LITSERVE)
"""The servers whose ratio to the bare batcher is a figure."""
TURNS = 3
LOADS = {"full": USERS, "alone": 1}
"""Users by load: batches are full, or each has a single request."""
NEIGHBORS = {"": 0, "_busy": os.cpu_count() or 1}
"""Busy processes by the suffix of the figures."""
PATIENT = ("--window", "105")
"""Options with which no request is refused on a busy machine; LitServe has a minute for each."""
WARM = 3
"""Requests of a user before the measurement."""


@dataclass(frozen=True)
class Target:
    pid: int
    port: int
    path: str
    body: str

    def load(self, users: int, count: int) -> None:
        good = send_requests(
            self.port,
            self.path,
            self.body,
            users=users,
            count=count,
        )
        assert good == count, f"{good} of {count} answered"


@dataclass(frozen=True)
class Spent:
    """Resources that a server and its children have used since their start."""

    cpu_s: float
    switches: int
    """Context switches by threads that wait for something."""


def _read_spent(pid: int) -> Spent:
    cpu_s = 0.0
    switches = 0
    for process in family(pid):
        times = process.cpu_times()
        cpu_s += times.user + times.system
        for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
            for line in status.read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    switches += int(line.split()[1])
    return Spent(cpu_s, switches)


@contextmanager
def _running(name: str, folder: Path) -> Generator[Target]:
    if name == OURS:
        with serve(folder, "--batch", str(BATCH), *PATIENT) as server:
            yield Target(server.process.pid, server.port, INFER, BODY)
        return
    rival = _make_rival(name)
    with running_rival(rival, folder) as pid:
        yield Target(pid, rival.port, rival.path, rival.body)


def _make_rival(name: str) -> Rival:
    if name == LITSERVE:
        return litserve()
    return bare_batcher(1) if name == UNBATCHED else bare_batcher()


def measure_cost(folder: Path, *, requests: int) -> Figures:
    """Sends `requests` by each load, in each turn of each server.

    Only a tenth is sent where each batch has one request.
    """
    turns: dict[str, list[float]] = {}
    try:
        for _ in range(TURNS):
            for name in (BARE, *RATED):
                full = requests // 10 if name == UNBATCHED else requests
                with _running(name, folder) as target:
                    for key, value in _measure(target, full, requests // 10).items():
                        turns.setdefault(f"{name}_{key}", []).append(value)
    except CannotRun as error:
        return {"cost_not_run": str(error)}
    figures: Figures = {}
    for key, values in turns.items():
        figures[key] = round(median(values), 3)
    for load in LOADS:
        for suffix in NEIGHBORS:
            key = f"{load}{suffix}"
            for name in RATED:
                ratio = figures[f"{name}_{key}_ms"] / figures[f"{BARE}_{key}_ms"]
                figures[f"{name}_{key}_ratio"] = round(ratio, 2)
    return {"cost": figures}


def _measure(target: Target, full: int, alone: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    counts = {"full": full, "alone": alone}
    for suffix, neighbors in NEIGHBORS.items():
        with spinning(neighbors):
            for load, users in LOADS.items():
                count = counts[load]
                target.load(users, WARM * users)
                before = _read_spent(target.pid)
                target.load(users, count)
                after = _read_spent(target.pid)
                key = f"{load}{suffix}"
                figures[f"{key}_ms"] = 1000 * (after.cpu_s - before.cpu_s) / count
                figures[f"{key}_switches"] = (after.switches - before.switches) / count
    return figures
