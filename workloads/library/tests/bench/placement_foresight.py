"""What a policy pays that knows all statistics of a zone and not its future: the best that no foresight allows.

A spell's chance to end depends on how long it has lasted. From these chances, counted in the very recording that is
then played, dynamic programming finds what to do in every step, for every amount of work left. No policy that sees
what a job sees does better, but by chance or by knowing more than the age of the spell.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.place.runs import Bools, Floats, Ints
from workloads.library.tests.bench.placement_policies import RATIO, RESTART_H, WORK_H
from workloads.library.tests.bench.placement_traces import Trace

TICK_H = 0.05
SPOT_USD, DEMAND_USD = TICK_H / RATIO, TICK_H
WORK, RESTART = round(WORK_H / TICK_H), round(RESTART_H / TICK_H)
AGES_H = np.array([0.0, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
UP = np.arange(2 * len(AGES_H)) < len(AGES_H)
"""Of the states of a zone: there and gone, by age."""
TOO_LATE_USD = 1e4
NOTHING, SPOT, DEMAND, STARTS_SPOT, STARTS_DEMAND = range(5)

Steps = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to be on, by steps left, state of the zone and work left: standing idle, on Spot, on on-demand."""

    idle: Steps
    on_spot: Steps
    on_demand: Steps


def states(up: Bools) -> Ints:
    """The state of the zone in each step."""
    change = np.flatnonzero(np.diff(up, prepend=~up[:1]))
    began = change[np.searchsorted(change, np.arange(len(up)), side="right") - 1]
    age = np.searchsorted(AGES_H, (np.arange(len(up)) - began) * TICK_H + 1e-9, side="right") - 1
    return np.where(up, age, len(AGES_H) + age)


def chances(state: Ints) -> Floats:
    """Of one state after another; what was never seen is unlikely, not impossible."""
    ages = len(AGES_H)
    counted = 0.5 * np.eye(2 * ages)
    counted += 0.025 * np.kron(np.eye(2), np.eye(ages, k=1))
    counted[:ages, ages] += 0.025
    counted[ages:, 0] += 0.025
    np.add.at(counted, (state[:-1], state[1:]), 1.0)
    return counted / counted.sum(axis=1, keepdims=True)


def best(chance: Floats, steps: int) -> Plan:
    """Backwards from the deadline: what is cheapest on average, and never too late."""
    made = np.zeros((3, steps + 1, len(UP), WORK + 1), np.int8)
    there = UP[:, None]
    idle, spot, demand = (_too_late() for _ in range(3))
    spot_starts, demand_starts = ([_too_late() for _ in range(RESTART)] for _ in range(2))
    for left in range(1, steps + 1):
        spot_starts = [_paid(SPOT_USD + chance @ np.where(there, each, idle)) for each in (spot, *spot_starts[:-1])]
        demand_starts = [_paid(DEMAND_USD + chance @ each) for each in (demand, *demand_starts[:-1])]
        on_spot = SPOT_USD + chance @ np.where(there, _worked(spot), _worked(idle))
        on_demand = DEMAND_USD + chance @ _worked(demand)
        choices = np.stack([chance @ idle, np.where(there, spot_starts[-1], np.inf), demand_starts[-1]])
        idle = _paid(choices.min(axis=0))
        made[0, left], made[1, left], made[2, left] = choices.argmin(axis=0), on_spot <= idle, on_demand <= idle
        spot, demand = _paid(np.minimum(on_spot, idle)), _paid(np.minimum(on_demand, idle))
    return Plan(idle=made[0], on_spot=made[1], on_demand=made[2])


def _too_late() -> Floats:
    return _paid(np.full((len(UP), WORK + 1), TOO_LATE_USD))


def _paid(usd: Floats) -> Floats:
    usd[:, 0] = 0.0
    return usd


def _worked(after: Floats) -> Floats:
    return np.hstack([np.zeros((len(after), 1)), after[:, :-1]])


def follow(plan: Plan, state: Ints, first: Ints) -> Floats:
    """USD of runs that begin at the steps `first`. After the end of the recording Spot is gone."""
    state = np.append(state, len(AGES_H))
    on, starts, work, usd = (np.zeros(len(first), kind) for kind in (int, int, int, float))
    work += WORK
    for left in range(plan.idle.shape[0] - 1, 0, -1):
        now = state[np.minimum(first + plan.idle.shape[0] - 1 - left, len(state) - 1)]
        on[np.isin(on, (SPOT, STARTS_SPOT)) & ~UP[now]] = NOTHING
        for place, kept in ((SPOT, plan.on_spot), (DEMAND, plan.on_demand)):
            on[(on == place) & (kept[left, now, work] == 0)] = NOTHING
        choice = np.where((on == NOTHING) & (work > 0), plan.idle[left, now, work], NOTHING)
        starts[choice > 0] = RESTART
        on = np.where(choice == SPOT, STARTS_SPOT, np.where(choice == DEMAND, STARTS_DEMAND, on))
        usd += (work > 0) * np.array([0.0, SPOT_USD, DEMAND_USD, SPOT_USD, DEMAND_USD])[on]
        works, begins = np.isin(on, (SPOT, DEMAND)) & (work > 0), on >= STARTS_SPOT
        work[works] -= 1
        starts[begins] -= 1
        on = np.where(begins & (starts == 0), on - (STARTS_SPOT - SPOT), on)
    assert not work.any(), "a run that is too late"
    return usd


def seen(trace: Trace, deadline_h: float, offset_h: Floats) -> Floats:
    """USD of each start under the best plan for the recording's own statistics."""
    middles = (np.arange(int(trace.hours / TICK_H)) + 0.5) * TICK_H
    state = states(trace.up[np.minimum((middles / trace.gap_h).astype(np.int64), len(trace.up) - 1)])
    return follow(best(chances(state), round(deadline_h / TICK_H)), state, (offset_h / TICK_H).astype(np.int64))
