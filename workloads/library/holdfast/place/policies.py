"""Policies as data: each is a set of straight lines over the slack, so that the simulator has no policy code.

Slack is time left less work left. Waiting burns it hour by hour, every start
burns one restart, running on anything keeps it. A policy says at which slack it stops waiting, dares Spot,
leaves Spot, and comes back.
"""

# Why it is so: infra/decisions/0052.

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from holdfast.place.runs import Floats, Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Slack in hours. wait and back are base + slope * work left."""

    wait_base: Floats
    """With no Spot to be had: at this slack or less, buy on-demand instead of waiting."""
    wait_slope: Floats
    back_base: Floats
    """On on-demand while Spot is there: go back only above this slack."""
    back_slope: Floats
    enter: Floats
    """Start a Spot machine only above this slack, else buy on-demand."""
    leave: Floats
    """On Spot: at this slack or less, move to on-demand while it is still safe."""
    patience_h: Floats
    """From on-demand, go back only to Spot that has been there this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    name: str
    lines: Callable[[Runs], Lines]
    needs_deadline: bool = True
    carried_out_by: str = "someone who moves the job"
    """What must exist on the cluster for the job to be run so."""


def _full(runs: Runs, value: float) -> Floats:
    return np.full(len(runs), value)


def _constant(value: float) -> Callable[[Runs], Lines]:
    def lines(runs: Runs) -> Lines:
        flat, zero = _full(runs, value), _full(runs, 0.0)
        return Lines(
            wait_base=flat, wait_slope=zero, back_base=flat, back_slope=zero, enter=flat, leave=flat, patience_h=zero
        )

    return lines


def _net(runs: Runs, restarts: float) -> Floats:
    return restarts * runs.restart_h + runs.loss_h


def _greedy(runs: Runs) -> Lines:
    # Two restarts, as published: the second one covers an eviction during the first.
    net, zero = _net(runs, 2), _full(runs, 0.0)
    return Lines(
        wait_base=net,
        wait_slope=zero,
        # No slack is above inf: once on on-demand it stays there, as published.
        back_base=_full(runs, np.inf),
        back_slope=zero,
        enter=net,
        leave=net,
        patience_h=zero,
    )


def _queue(runs: Runs) -> Lines:
    # What was granted is not taken away, so giving it up would only cost another start.
    return replace(_greedy(runs), leave=_full(runs, -np.inf))


def _uniform(runs: Runs) -> Lines:
    """Work done advances evenly with time: on the line, slack shrinks in proportion to the work left."""
    slope, net = (runs.deadline_h - runs.work_h) / runs.work_h, _net(runs, 2)
    return Lines(
        wait_base=_full(runs, 0.0),
        wait_slope=slope,
        back_base=2 * runs.restart_h,
        back_slope=slope,
        enter=net,
        leave=net,
        patience_h=_full(runs, 0.0),
    )


def _hybrid(runs: Runs) -> Lines:
    return _fallback(runs, _net(runs, 2))


def _stay(runs: Runs) -> Lines:
    return _fallback(runs, _full(runs, np.inf))


def _fallback(runs: Runs, back: Floats) -> Lines:
    """The priorities of a ComputeClass: on-demand whenever Spot is not to be had, back to Spot above this slack."""
    net, zero = _net(runs, 2), _full(runs, 0.0)
    return Lines(
        # No slack is above inf: it never waits.
        wait_base=_full(runs, np.inf),
        wait_slope=zero,
        back_base=back,
        back_slope=zero,
        enter=net,
        leave=net,
        patience_h=zero,
    )


def patience(*, share: float, reserve: float, ripe: float) -> Callable[[Runs], Lines]:
    """Uniform progress at `share` of its slope and with `reserve` restarts, and from on-demand back to Spot only when
    that has paid before, `ripe` times over.

    Giving up on-demand costs a restart on each side. Spot must live so long to earn them back; capacity that
    has already been there for so long is likely to stay as long again, because lifetimes have a heavy tail.
    The nets are exact, not doubled: simulated time stops at the very moment.
    """

    def lines(runs: Runs) -> Lines:
        saved = runs.on_demand_usd - runs.spot_usd
        # Spot that is not cheaper divides by zero here; `pays` keeps those runs off it.
        with np.errstate(divide="ignore", invalid="ignore"):
            earned = ripe * runs.restart_h * (runs.on_demand_usd + runs.spot_usd) / saved
        pays = saved > 0.0
        return Lines(
            wait_base=_net(runs, reserve),
            wait_slope=share * (runs.deadline_h - runs.work_h) / runs.work_h,
            back_base=_net(runs, 2),
            back_slope=_full(runs, 0.0),
            enter=np.where(pays, _net(runs, 2), np.inf),
            leave=np.where(pays, _net(runs, 1), np.inf),
            patience_h=np.where(pays, earned, np.inf),
        )

    return lines


COMPUTE_CLASS = "a ComputeClass"
ONE_CAPACITY = "any selector"

WAIT = Policy(name="wait", lines=_constant(-np.inf), needs_deadline=False, carried_out_by=ONE_CAPACITY)
"""One interruptible capacity and nothing else: Spot only, flex-start only."""
ON_DEMAND_ONLY = Policy(
    name="on-demand only", lines=_constant(np.inf), needs_deadline=False, carried_out_by=ONE_CAPACITY
)
GREEDY = Policy(name="greedy", lines=_greedy)
QUEUE = Policy(name="queue", lines=_queue)
"""Flex-start, and on-demand from the last moment at which only it still arrives in time; never back."""
UNIFORM = Policy(name="uniform progress", lines=_uniform)
HYBRID = Policy(name="hybrid", lines=_hybrid, needs_deadline=False, carried_out_by=COMPUTE_CLASS)
"""On-demand at once when Spot is gone, and back when it returns: a ComputeClass with active migration."""
STAY = Policy(name="fallback", lines=_stay, needs_deadline=False, carried_out_by=COMPUTE_CLASS)
"""On-demand at once when Spot is gone, to the end: a ComputeClass without active migration."""
# Chosen on 11 recordings; on 80 others it was dearer than uniform progress by over 0.5 points in 2 % of cases. Fewer
# restarts in reserve left no room for a second eviction right after the switch.
PATIENT = Policy(name="patient", lines=patience(share=0.6, reserve=4, ripe=1))
"""Ours. Never late where on-demand is granted when asked for and the deadline is feasible. Mostly no dearer than
uniform progress: on 11,520 cases of 80 other recordings over 0.5 points dearer in 2 %, at worst 5.9; greedy beats it
by over 2 points in 6 to 8 %. So a job is simulated under several, and the cheapest is taken."""
EAGER = Policy(name="eager", lines=patience(share=0.4, reserve=2, ripe=0))
"""For much slack: waits longer, and goes back to Spot as soon as it is there."""
STEADY = Policy(name="steady", lines=patience(share=1.0, reserve=4, ripe=2))
"""For little slack: buys sooner, and stays longer on what it has bought."""
IN_TIME = (PATIENT, EAGER, STEADY)
WITH_DEADLINE = (GREEDY, UNIFORM, HYBRID, *IN_TIME)
