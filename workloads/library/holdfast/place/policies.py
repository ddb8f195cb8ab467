"""Defines policies as straight lines over the slack, so that the simulator has no policy code.

Slack is time left less work left. Waiting burns it hour by hour, every start burns one restart,
running keeps it. A policy says at which slack it stops waiting, starts on Spot, leaves Spot, and
comes back. Why: infra/decisions/0052.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from holdfast.place.simulation_arrays import Bools, Floats, Runs

# Sums of event times differ in the last bits; without it a run stays at its own event forever.
EPS_H = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The slack in hours at which a run moves.

    The lines of wait and back are `base + slope * work left`.
    """

    wait_base: Floats
    """Slack at which a run without Spot stops waiting and buys on-demand."""
    wait_slope: Floats
    back_base: Floats
    """Slack above which a run on on-demand goes back to Spot that is available."""
    back_slope: Floats
    enter: Floats
    """Slack above which a Spot machine is started; below it, on-demand is bought."""
    leave: Floats
    """Slack at which a run on Spot moves to on-demand, while it is still safe."""
    patience_h: Floats
    """Hours for which Spot must have been available before a run goes back to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    name: str
    """Name in the plan of a job."""
    shown: str = ""
    """Name in an answer; empty if no answer shows it."""
    lines: Callable[[Runs], Lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """The runs that start on a capacity now, from nothing or from the other one; none does both."""

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
    """Return the moves of runs, one element for each run.

    left_h: remaining work. slack_h: remaining time less that work. up_for_h: hours for which Spot
    has been available.
    """
    idle = ~(on_spot | on_demand)
    near_limit = slack_h <= lines.enter + EPS_H
    wait_line = lines.wait_base + lines.wait_slope * left_h
    behind = slack_h <= wait_line + EPS_H
    # Near the limit also where Spot is available: one eviction from it would break the deadline.
    buy = idle & (near_limit | (behind & ~up))
    back_line = lines.back_base + lines.back_slope * left_h
    ahead = slack_h >= back_line - EPS_H
    patient = up_for_h >= lines.patience_h - EPS_H
    back = on_demand & up & ahead & patient & ~near_limit
    leaving = on_spot & (slack_h <= lines.leave + EPS_H)
    start = idle & up & ~buy
    return Moves(to_spot=back | start, to_demand=buy | leaving)


def make_lines(
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
    """Return lines with one element for each run; a number holds for all of them."""

    def full(value: Floats | float) -> Floats:
        array = np.asarray(value, dtype=np.float64)
        return np.broadcast_to(array, (len(runs),)).copy()

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
    """Return the slack that this number of restarts and one eviction cost."""
    return restarts * runs.restart_h + runs.loss_h


def _wait(runs: Runs) -> Lines:
    # No slack is at or below -inf: it never buys.
    return make_lines(
        runs,
        wait=-np.inf,
        back=-np.inf,
        enter=-np.inf,
        leave=-np.inf,
    )


def _queue(runs: Runs) -> Lines:
    # What was granted is not evicted: giving it up would only cost another start.
    return make_lines(
        runs,
        wait=net(runs, 2),
        back=np.inf,
        enter=net(runs, 2),
        leave=-np.inf,
    )


def _hybrid(runs: Runs) -> Lines:
    # No slack is above inf: it never waits.
    return make_lines(
        runs,
        wait=np.inf,
        back=net(runs, 2),
        enter=net(runs, 2),
        leave=net(runs, 2),
    )


def patience(*, share: float, reserve: float, ripe: float) -> Callable[[Runs], Lines]:
    """Return lines of uniform progress, at `share` of its slope and with `reserve` restarts.

    A run goes from on-demand back to Spot only when that has paid before, `ripe` times over.
    Giving up on-demand costs a restart on each side. Spot must live long enough to earn them back;
    capacity that has been available for that long is likely to last as long again, because
    lifetimes have a heavy tail. The nets are exact, not doubled: simulated time stops at the very
    moment.
    """

    def lines(runs: Runs) -> Lines:
        saved = runs.on_demand_usd - runs.spot_usd
        both_usd = runs.on_demand_usd + runs.spot_usd
        # Spot that is not cheaper divides by zero here; `pays` keeps those runs off it.
        with np.errstate(divide="ignore", invalid="ignore"):
            earned_h = ripe * runs.restart_h * both_usd / saved
        pays = saved > 0.0
        enter = np.where(pays, net(runs, 2), np.inf)
        leave = np.where(pays, net(runs, 1), np.inf)
        patience_h = np.where(pays, earned_h, np.inf)
        wait_slope = share * (runs.deadline_h - runs.work_h) / runs.work_h
        return make_lines(
            runs,
            wait=net(runs, reserve),
            wait_slope=wait_slope,
            back=net(runs, 2),
            enter=enter,
            leave=leave,
            patience_h=patience_h,
        )

    return lines


WAIT = Policy(name="wait", shown="wait for Spot", lines=_wait)
"""Uses one interruptible capacity and nothing else: Spot only, or flex-start only."""
QUEUE = Policy(name="queue", shown="queue, on-demand in time", lines=_queue)
"""Waits for flex-start, and buys on-demand at the last moment at which it still arrives in time."""
HYBRID = Policy(name="hybrid", shown="Spot, else on-demand at once", lines=_hybrid)
"""Buys on-demand at once without Spot, and goes back when Spot returns.

A ComputeClass with active migration does the same.
"""
PATIENT = Policy(
    name="patient",
    shown="Spot, on-demand in time",
    lines=patience(share=0.6, reserve=4, ripe=1),
)
"""Is never late if on-demand is always granted and the deadline is feasible.

Fewer restarts in reserve left no room for a second eviction right after the switch. No policy is
best for every job: the cheapest of IN_TIME is taken.
"""
_EAGER = patience(share=0.4, reserve=2, ripe=0)
_STEADY = patience(share=1.0, reserve=4, ripe=2)
EAGER = Policy(name="eager", shown="Spot, on-demand in time, back at once", lines=_EAGER)
"""Waits longer, and goes back to Spot as soon as it is available; it suits jobs with much slack."""
STEADY = Policy(name="steady", shown="Spot, on-demand in time, rarely back", lines=_STEADY)
"""Buys sooner, and stays longer on what it has bought; it suits jobs with little slack."""
IN_TIME = (PATIENT, EAGER, STEADY)
