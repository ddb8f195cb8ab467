"""`python -m workloads.library.tests.bench.elastic`: how long an elastic gang stands still when a
member leaves, dies, freezes or comes.

Gangs of real processes on this machine. A time is from the signal to the first step that a survivor
applies with the others; for growth it is the gap between two steps of a survivor. The cost of an
undisturbed step is the gang's loop against the same loop with nothing but one all-reduce, turn by
turn in the same processes. Beside it the same death under the rigid gang of this project, and under
torchft, as delivered and tuned; a rival that cannot run here is a row with the reason.
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
    rigid_killed,
    torchft_killed,
)
from workloads.library.tests.bench.gangs.elastic_step import no_more_than, step_costs
from workloads.library.tests.bench.result import ended
from workloads.library.tests.bench.rival_home import CannotRun
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.processes import until
from workloads.library.tests.training.elastic.gangs import CHILD
from workloads.library.tests.training.elastic.kills import SETTINGS, LedgerGang

ROUNDS = 3
NODES = 3
WAIT_S = 120.0
NEVER_ENDS = 10**6


def gang_in(folder: Path, server: ForkServer) -> LedgerGang:
    settings = SETTINGS | {
        "steps": NEVER_ENDS,
        "every": NEVER_ENDS,
        "connect_s": 10.0,
    }
    gang = LedgerGang(folder, server=server, nodes=NODES, **settings)
    del gang.settings["silent_s"]  # as delivered
    return gang


def applied(gang: LedgerGang, epoch: int) -> list[dict[str, Any]]:
    return [line for line in gang.ledger() if line["what"] == "applied" and line["epoch"] >= epoch]


def disturbed_s(gang: LedgerGang, number: signal.Signals) -> float:
    """From the signal to place 1 until a survivor has done a step without it."""
    epoch = until(lambda: applied(gang, 0), within_s=WAIT_S)[-1]["epoch"]
    until(lambda: len(applied(gang, epoch)) > 10 * NODES, within_s=WAIT_S)
    began = time.monotonic()
    gang.signal_session(1, number) if number is signal.SIGSTOP else gang.signal(1, number)
    return float(until(lambda: applied(gang, epoch + 1), within_s=WAIT_S)[0]["t"]) - began


def growth_stall_s(gang: LedgerGang) -> float:
    """The gap between a survivor's last step before the newcomer and its first one with it."""
    epoch = applied(gang, 0)[-1]["epoch"]
    gang.start(1)
    until(lambda: len(applied(gang, epoch + 1)) > NODES, within_s=WAIT_S)
    survivor = gang.processes[0].pid
    times = [line["t"] for line in applied(gang, epoch) if line["process"] == survivor]
    return max(later - earlier for earlier, later in pairwise(times))


def one_gang(folder: Path, server: ForkServer, number: signal.Signals) -> tuple[float, float]:
    with closing(gang_in(folder, server)) as gang:
        gang.start(*range(NODES))
        lost = disturbed_s(gang, number)
        if number is signal.SIGSTOP:
            return lost, 0.0
        gang.processes[1].wait()
        return lost, growth_stall_s(gang)


def measured(folder: Path, server: ForkServer) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {
        "notice": [],
        "death": [],
        "silent": [],
        "growth": [],
    }
    for n in range(ROUNDS):
        for what, number in (("notice", signal.SIGTERM), ("death", signal.SIGKILL)):
            lost, grown = one_gang(folder / f"{what}-{n}", server, number)
            times[what].append(lost)
            times["growth"].append(grown)
    times["silent"].append(one_gang(folder / "silent", server, signal.SIGSTOP)[0])
    return times


def rivals(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        RIGID: several(lambda n: rigid_killed(folder / f"rigid-{n}")),
        "torchft tuned": several(lambda n: torchft_killed(folder / f"tuned-{n}", TUNED)),
        "torchft stock": several(lambda n: torchft_killed(folder / f"stock-{n}")),
    }


def several(once: Callable[[int], float]) -> dict[str, Any]:
    """The median of the deaths, and each; why a round has none where not all do."""
    deaths_s = list[float]()
    without = list[str]()
    for n in range(ROUNDS):
        try:
            deaths_s.append(round(once(n), 2))
        except CannotRun as error:
            without.append(str(error))
    failed = {"not_run": f"{len(without)} of {ROUNDS} times: {without[0]}"} if without else {}
    return (
        {
            "death_s": statistics.median(deaths_s),
            "deaths_s": deaths_s,
        }
        if deaths_s
        else {}
    ) | failed


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-elastic-") as name:
        folder = Path(name)
        with closing(ForkServer(["torch._dynamo", CHILD])) as server:
            times = measured(folder, server)
        costs = step_costs(folder / "cost")
        others = rivals(folder / "rivals")
    middle = {what: round(statistics.median(found), 3) for what, found in times.items()}
    step_s = 0.05
    goals = {
        "notice_at_most_1_s_and_a_step": middle["notice"] <= 1.0 + step_s,
        "death_at_most_2_s": middle["death"] <= 2.0,
        "silent_at_most_20_s": middle["silent"] <= 20.0,
        "stall_of_survivors_while_growing_at_most_3_s": middle["growth"] <= 3.0,
        "an_undisturbed_step_costs_at_most_1_percent": no_more_than(0.01, costs),
    }
    result = {
        "median_s": middle,
        "step_cost": costs,
        "rivals": others,
    }
    ended({"schema": "holdfast.bench.elastic/1"} | result, goals)


if __name__ == "__main__":
    main()
