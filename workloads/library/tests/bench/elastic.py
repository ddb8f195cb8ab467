"""The pause of an elastic gang when a member leaves, dies, freezes or joins.

    python -m workloads.library.tests.bench.elastic

Gangs are real processes on this machine. A time lasts from the signal to the first step that a
survivor applies without the member; for growth it is the gap between two steps of a survivor. The
cost of an undisturbed step compares the gang's loop with the same loop around one all-reduce, turn
by turn in the same processes. The same death is measured under the rigid gang of this project, and
under torchft with its defaults and tuned; a rival that cannot run here is a row with the reason.
"""

import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

from workloads.library.tests.bench.gangs.elastic_rivals import (
    RIGID,
    TUNED,
    time_rigid_death,
    time_torchft_death,
)
from workloads.library.tests.bench.gangs.elastic_step import is_at_most, step_costs
from workloads.library.tests.bench.result import finish
from workloads.library.tests.bench.rival_home import CannotRun
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.processes import until
from workloads.library.tests.training.elastic.gangs import CHILD
from workloads.library.tests.training.elastic.kills import SETTINGS, LedgerGang

ROUNDS = 3
NODES = 3
WAIT_S = 120.0
NEVER_ENDS = 10**6


def make_gang(folder: Path, server: ForkServer) -> LedgerGang:
    settings = SETTINGS | {
        "steps": NEVER_ENDS,
        "every": NEVER_ENDS,
        "connect_s": 10.0,
    }
    gang = LedgerGang(folder, server=server, nodes=NODES, **settings)
    del gang.settings["silent_s"]  # the default is measured
    return gang


def steps_since(gang: LedgerGang, epoch: int) -> list[dict[str, Any]]:
    """Returns the steps that the gang applied in this epoch or a later one."""
    lines: list[dict[str, Any]] = []
    for line in gang.ledger():
        if line["what"] == "applied" and line["epoch"] >= epoch:
            lines.append(line)
    return lines


def time_disturbance(gang: LedgerGang, number: signal.Signals) -> float:
    """Sends a signal to place 1; returns seconds until a survivor does a step without it."""
    epoch = until(lambda: steps_since(gang, 0), within_s=WAIT_S)[-1]["epoch"]
    until(lambda: len(steps_since(gang, epoch)) > 10 * NODES, within_s=WAIT_S)
    start = time.monotonic()
    if number is signal.SIGSTOP:
        gang.signal_session(1, number)
    else:
        gang.signal(1, number)
    later_steps = until(lambda: steps_since(gang, epoch + 1), within_s=WAIT_S)
    return float(later_steps[0]["t"]) - start


def time_growth_stall(gang: LedgerGang) -> float:
    """Adds a member; returns the gap between a survivor's last step without it and its next one."""
    epoch = steps_since(gang, 0)[-1]["epoch"]
    gang.start(1)
    until(lambda: len(steps_since(gang, epoch + 1)) > NODES, within_s=WAIT_S)
    survivor = gang.processes[0].pid
    times = []
    for line in steps_since(gang, epoch):
        if line["process"] == survivor:
            times.append(line["t"])
    return max(later - earlier for earlier, later in pairwise(times))


def measure_gang(folder: Path, server: ForkServer, number: signal.Signals) -> tuple[float, float]:
    """Returns the seconds of the loss and of the growth; a frozen member is not replaced."""
    with closing(make_gang(folder, server)) as gang:
        gang.start(*range(NODES))
        loss_s = time_disturbance(gang, number)
        if number is signal.SIGSTOP:
            return loss_s, 0.0
        gang.processes[1].wait()
        return loss_s, time_growth_stall(gang)


def measure(folder: Path, server: ForkServer) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {
        "notice": [],
        "death": [],
        "silent": [],
        "growth": [],
    }
    for n in range(ROUNDS):
        for kind, number in (("notice", signal.SIGTERM), ("death", signal.SIGKILL)):
            loss_s, growth_s = measure_gang(folder / f"{kind}-{n}", server, number)
            times[kind].append(loss_s)
            times["growth"].append(growth_s)
    silent_s, _ = measure_gang(folder / "silent", server, signal.SIGSTOP)
    times["silent"].append(silent_s)
    return times


def rivals(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        RIGID: repeat(lambda n: time_rigid_death(folder / f"rigid-{n}")),
        "torchft tuned": repeat(lambda n: time_torchft_death(folder / f"tuned-{n}", TUNED)),
        "torchft stock": repeat(lambda n: time_torchft_death(folder / f"stock-{n}")),
    }


def repeat(time_death: Callable[[int], float]) -> dict[str, Any]:
    """Returns all times and their median, and the reason if some rounds could not run."""
    deaths_s = list[float]()
    reasons = list[str]()
    for n in range(ROUNDS):
        try:
            deaths_s.append(round(time_death(n), 2))
        except CannotRun as error:
            reasons.append(str(error))
    figures: dict[str, Any] = {}
    if deaths_s:
        figures["death_s"] = statistics.median(deaths_s)
        figures["deaths_s"] = deaths_s
    if reasons:
        figures["not_run"] = f"{len(reasons)} of {ROUNDS} times: {reasons[0]}"
    return figures


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-elastic-") as name:
        folder = Path(name)
        with closing(ForkServer(["torch._dynamo", CHILD])) as server:
            times = measure(folder, server)
        costs = step_costs(folder / "cost")
        rows = rivals(folder / "rivals")
    medians_s = {}
    for kind, seconds in times.items():
        medians_s[kind] = round(statistics.median(seconds), 3)
    step_s = 0.05
    goals = {
        "notice_at_most_1_s_and_a_step": medians_s["notice"] <= 1.0 + step_s,
        "death_at_most_2_s": medians_s["death"] <= 2.0,
        "silent_at_most_20_s": medians_s["silent"] <= 20.0,
        "stall_of_survivors_while_growing_at_most_3_s": medians_s["growth"] <= 3.0,
        "an_undisturbed_step_costs_at_most_1_percent": is_at_most(0.01, costs),
    }
    result = {
        "median_s": medians_s,
        "step_cost": costs,
        "rivals": rows,
    }
    finish({"schema": "holdfast.bench.elastic/1"} | result, goals)


if __name__ == "__main__":
    main()
