"""Policies as data: each is a set of straight lines over the slack, so that the simulator has no
policy code.

Slack is time left less work left. Waiting burns it hour by hour, every start burns one restart,
running keeps it. A policy says at which slack it stops waiting, starts on Spot, leaves Spot, and
comes back. Why: infra/decisions/0052.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from holdfast.place.simulation_arrays import Bools, Floats, Runs

# Sums of event times differ in the last bits; without it a run stays at its own event for ever.
EPS_H = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Slack in hours. wait and back are base + slope * work left."""

    wait_base: Floats
    """Without Spot: at this slack or less, buy on-demand instead of waiting."""
    wait_slope: Floats
    back_base: Floats
    """On on-demand while Spot is available: go back only above this slack."""
    back_slope: Floats
    enter: Floats
    """Start a Spot machine only above this slack, else buy on-demand."""
    leave: Floats
    """On Spot: at this slack or less, move to on-demand while it is still safe."""
    patience_h: Floats
    """From on-demand, go back only to Spot that has been available this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    name: str
    """In the plan of a job."""
    shown: str = ""
    """To a reader of an answer; empty where none shows it."""
    lines: Callable[[Runs], Lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Which runs start on what now, from nothing or from the other capacity; none does both."""

    to_spot: Bools
    to_demand: Bools


def decide(
    lines: Lines,
    *,
    left_h: Floats,
    slack_h: Floats,
    on_spot: Bools,
    on_demand: Bools,
    up: Bools,
    up_for_h: Floats,
) -> Moves:
    """One element a run. left_h: work; slack_h: time left less that work; up_for_h: how long Spot
    has been available.
    """
    idle = ~(on_spot | on_demand)
    near_limit = slack_h <= lines.enter + EPS_H
    behind = slack_h <= lines.wait_base + lines.wait_slope * left_h + EPS_H
    # Near the limit also where Spot is available: one eviction from it would break the deadline.
    buy = idle & (near_limit | (behind & ~up))
    ahead = slack_h >= lines.back_base + lines.back_slope * left_h - EPS_H
    patient = up_for_h >= lines.patience_h - EPS_H
    back = on_demand & up & ahead & patient & ~near_limit
    leaving = on_spot & (slack_h <= lines.leave + EPS_H)
    return Moves(to_spot=back | (idle & up & ~buy), to_demand=buy | leaving)


def lines_of(
    runs: Runs,
    *,
    wait: Floats | float,
    back: Floats | float,
    enter: Floats | float,
    leave: Floats | float,
    wait_slope: Floats | float = 0.0,
    back_slope: Floats | float = 0.0,
    patience_h: Floats | float = 0.0,
) -> Lines:
    def full(value: Floats | float) -> Floats:
        return np.broadcast_to(np.asarray(value, dtype=np.float64), (len(runs),)).copy()

    return Lines(
        wait_base=full(wait),
        wait_slope=full(wait_slope),
        back_base=full(back),
        back_slope=full(back_slope),
        enter=full(enter),
        leave=full(leave),
        patience_h=full(patience_h),
    )


def net(runs: Runs, restarts: float) -> Floats:
    """The slack that this number of restarts and one eviction cost."""
    return restarts * runs.restart_h + runs.loss_h


def _wait(runs: Runs) -> Lines:
    # No slack is at or below -inf: it never buys.
    return lines_of(
        runs,
        wait=-np.inf,
        back=-np.inf,
        enter=-np.inf,
        leave=-np.inf,
    )


def _queue(runs: Runs) -> Lines:
    # What was granted is not evicted: giving it up would only cost another start.
    return lines_of(
        runs,
        wait=net(runs, 2),
        back=np.inf,
        enter=net(runs, 2),
        leave=-np.inf,
    )


def _hybrid(runs: Runs) -> Lines:
    # No slack is above inf: it never waits.
    return lines_of(
        runs,
        wait=np.inf,
        back=net(runs, 2),
        enter=net(runs, 2),
        leave=net(runs, 2),
    )


def patience(*, share: float, reserve: float, ripe: float) -> Callable[[Runs], Lines]:
    """Uniform progress at `share` of its slope and with `reserve` restarts, and from on-demand back
    to Spot only when that has paid before, `ripe` times over.

    Giving up on-demand costs a restart on each side. Spot must live long enough to earn them back;
    capacity that has been available for that long is likely to last as long again, because
    lifetimes have a heavy tail. The nets are exact, not doubled: simulated time stops at the very
    moment.
    """

    def lines(runs: Runs) -> Lines:
        saved = runs.on_demand_usd - runs.spot_usd
        # Spot that is not cheaper divides by zero here; `pays` keeps those runs off it.
        with np.errstate(divide="ignore", invalid="ignore"):
            earned = ripe * runs.restart_h * (runs.on_demand_usd + runs.spot_usd) / saved
        pays = saved > 0.0
        return lines_of(
            runs,
            wait=net(runs, reserve),
            wait_slope=share * (runs.deadline_h - runs.work_h) / runs.work_h,
            back=net(runs, 2),
            enter=np.where(pays, net(runs, 2), np.inf),
            leave=np.where(pays, net(runs, 1), np.inf),
            patience_h=np.where(pays, earned, np.inf),
        )

    return lines


WAIT = Policy(name="wait", shown="wait for Spot", lines=_wait)
"""One interruptible capacity and nothing else: Spot only, flex-start only."""
QUEUE = Policy(
    name="queue",
    shown="queue, on-demand in time",
    lines=_queue,
)
"""Flex-start, and on-demand from the last moment at which only it still arrives in time; never
back.
"""
HYBRID = Policy(
    name="hybrid",
    shown="Spot, else on-demand at once",
    lines=_hybrid,
)
"""On-demand at once when Spot is gone, and back when it returns: a ComputeClass with active
migration.
"""
PATIENT = Policy(
    name="patient",
    shown="Spot, on-demand in time",
    lines=patience(share=0.6, reserve=4, ripe=1),
)
"""Never late where on-demand is always granted and the deadline is feasible. Fewer restarts in
reserve left no room for a second eviction right after the switch. No policy is best for every job:
the cheapest of IN_TIME is taken.
"""
_EAGER = patience(share=0.4, reserve=2, ripe=0)
_STEADY = patience(share=1.0, reserve=4, ripe=2)
EAGER = Policy(
    name="eager",
    shown="Spot, on-demand in time, back at once",
    lines=_EAGER,
)
"""For much slack: waits longer, and goes back to Spot as soon as it is available."""
STEADY = Policy(
    name="steady",
    shown="Spot, on-demand in time, rarely back",
    lines=_STEADY,
)
"""For little slack: buys sooner, and stays longer on what it has bought."""
IN_TIME = (PATIENT, EAGER, STEADY)
