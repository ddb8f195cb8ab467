"""Simulates many runs of jobs at once, in continuous time, on capacity that comes and goes.

No clock ticks: each round every run goes to its own next event (capacity toggles, a line of its
policy is crossed, the work is done), so a deadline net acts at the exact moment. A move by the
policy keeps all work, an eviction what was committed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.place.policies import EPS_H, Lines, Moves, Policy, decide
from holdfast.place.simulation_arrays import (
    Bools,
    Floats,
    Ints,
    Outcome,
    Paths,
    Runs,
    stack,
    take,
)

COMPACT_BELOW = 0.75


def simulate(runs: Runs, paths: Paths, policy: Policy) -> Outcome:
    """Simulate every run to its end."""
    return _simulate(runs, paths, policy.lines(runs))


def side_by_side(runs: Runs, paths: Paths, policies: Sequence[Policy]) -> list[Outcome]:
    """Simulate each policy on the same runs, with results equal to the bit to those of `simulate`.

    A round costs the interpreter the same for few runs and many, so one pass is faster.
    """
    count = len(runs)
    lines = [policy.lines(runs) for policy in policies]
    stacked_runs = stack([runs] * len(policies))
    outcome = _simulate(stacked_runs, paths, stack(lines))
    starts = range(0, len(policies) * count, count)
    return [take(outcome, slice(start, start + count)) for start in starts]


def _simulate(runs: Runs, paths: Paths, lines: Lines) -> Outcome:
    fleet = Fleet(runs, lines, paths)
    while fleet.state.alive.any():
        fleet.decide()
        fleet.advance()
        fleet.compact()
    return fleet.outcome


@dataclass(slots=True, kw_only=True)
class _State:
    row: Ints
    alive: Bools
    now: Floats
    done: Floats
    """Hours of finished work, with the cost of checkpoints spread evenly over it."""
    resumed: Floats
    """Hours of work that were done when this machine started."""
    warm: Floats
    """Remaining hours of the restart."""
    ran: Floats
    """Hours on this machine since the restart."""
    on_spot: Bools
    on_demand: Bools
    up: Bools
    up_since: Floats
    toggle: Floats
    edge: Ints
    spot_h: Floats
    on_demand_h: Floats
    idle_h: Floats
    waited: Floats
    """Hours of the current wait."""
    evictions: Floats


class Fleet:
    """Holds the unfinished runs; finished ones stay as ballast until it pays to drop them."""

    def __init__(self, runs: Runs, lines: Lines, paths: Paths) -> None:
        n = len(runs)
        self.runs = runs
        self.lines = lines
        self.paths = paths
        self.outcome = Outcome(
            finish_h=np.zeros(n),
            usd=np.zeros(n),
            spot_h=np.zeros(n),
            on_demand_h=np.zeros(n),
            evictions=np.zeros(n),
        )
        self.state = _State(
            row=np.arange(n),
            alive=np.ones(n, bool),
            now=np.zeros(n),
            done=np.zeros(n),
            resumed=np.zeros(n),
            warm=np.zeros(n),
            ran=np.zeros(n),
            on_spot=np.zeros(n, bool),
            on_demand=np.zeros(n, bool),
            up=np.zeros(n, bool),
            up_since=np.zeros(n),
            toggle=np.zeros(n),
            edge=_first_edge(runs, paths),
            spot_h=np.zeros(n),
            on_demand_h=np.zeros(n),
            idle_h=np.zeros(n),
            evictions=np.zeros(n),
            waited=np.zeros(n),
        )
        self._look_up(np.arange(n))
        self._compute_spot_rate()

    def decide(self) -> Moves:
        """Start, move or hold each run as its policy says now."""
        state = self.state
        work_left = self.runs.work_h - state.done
        slack = self.runs.deadline_h - state.now - work_left
        moves = decide(
            self.lines,
            left_h=work_left,
            slack_h=slack,
            on_spot=state.on_spot,
            on_demand=state.on_demand,
            up=state.up,
            up_for_h=state.now - state.up_since,
        )
        # A start of either kind pays the whole restart again, also when it interrupts one.
        moved = moves.to_spot | moves.to_demand
        stays_on_spot = state.on_spot & ~moves.to_demand
        stays_on_demand = state.on_demand & ~moves.to_spot
        state.on_spot = stays_on_spot | moves.to_spot
        state.on_demand = stays_on_demand | moves.to_demand
        state.warm = np.where(moved, self.runs.restart_h, state.warm)
        state.resumed = np.where(moved, state.done, state.resumed)
        state.ran[moved] = 0.0
        return moves

    def advance(self) -> None:
        """Take every run to its own next event."""
        state = self.state
        speed = np.where(state.on_spot, self.spot_speed, state.on_demand)
        work_left = self.runs.work_h - state.done
        step = self._until_next(speed, work_left)
        # Without an event ahead the capacity never comes back, and the loop would not end.
        stranded = np.isinf(step)
        # Zero and not inf: inf times a speed of 0 is not a number, and it would spread.
        step[stranded | ~state.alive] = 0.0
        useful = np.maximum(step - state.warm, 0.0)
        state.now = state.now + step
        state.done = state.done + speed * useful
        state.warm = np.maximum(state.warm - step, 0.0)
        state.ran = state.ran + useful
        self._bill(step)
        complete = state.done >= self.runs.work_h - EPS_H
        finished = state.alive & (stranded | complete)
        self._record(finished, stranded)
        at_toggle = state.now >= state.toggle - EPS_H
        self._toggle(np.flatnonzero(state.alive & at_toggle))

    def compact(self) -> None:
        """Drop the finished runs once they are a quarter of all."""
        alive = self.state.alive
        if np.count_nonzero(alive) < COMPACT_BELOW * len(alive):
            # Copying costs as much as a round, so not after each finished run.
            rows = np.flatnonzero(alive)
            self.state = take(self.state, rows)
            self.runs = take(self.runs, rows)
            self.lines = take(self.lines, rows)
            self._compute_spot_rate()

    def _compute_spot_rate(self) -> None:
        period = self.runs.period_h
        # Continuous and absent checkpoints cost nothing while running; inf / inf is not a number.
        checkpointed = np.isfinite(period) & (self.runs.interval_h > 0)
        self.spot_speed = np.divide(
            self.runs.interval_h,
            period,
            out=np.ones_like(period),
            where=checkpointed,
        )

    def _until_next(self, speed: Floats, work_left: Floats) -> Floats:
        state = self.state
        lines = self.lines
        slack = self.runs.deadline_h - state.now - work_left
        # Without a deadline slack is infinite; what is not a number then is no event, and fmin
        # passes over it.
        with np.errstate(divide="ignore", invalid="ignore"):
            finish = state.warm + work_left / speed
            # While warming slack falls hour by hour; afterwards by the share that checkpoints take.
            room = slack - lines.leave
            slowed = state.warm + (room - state.warm) / (1.0 - speed)
            must_leave = np.where(room <= state.warm, room, slowed)
            wait_line = lines.wait_base + lines.wait_slope * work_left
            must_buy = slack - np.maximum(lines.enter, wait_line)
        step = np.minimum(finish, state.toggle - state.now)
        step = np.where(state.on_spot, np.fmin(step, must_leave), step)
        running = state.on_spot | state.on_demand
        step = np.where(running, step, np.fmin(step, must_buy))
        rows = np.flatnonzero(state.on_demand & state.up)
        may_return = self._until_return(rows, slack[rows], work_left[rows])
        step[rows] = np.fmin(step[rows], may_return)
        return np.maximum(step, 0.0)

    def _until_return(self, rows: Ints, slack: Floats, work_left: Floats) -> Floats:
        """Return the hours until runs on on-demand may go back to Spot that is available.

        A run may go back when it is far enough ahead, or when it has been patient enough.
        """
        state = self.state
        lines = take(self.lines, rows)
        warm = state.warm[rows]
        with np.errstate(divide="ignore", invalid="ignore"):
            ahead = warm + work_left - (slack - warm - lines.back_base) / lines.back_slope
        ripe = state.up_since[rows] + lines.patience_h - state.now[rows]
        until_ahead = np.where(ahead > EPS_H, ahead, np.inf)
        until_ripe = np.where(ripe > EPS_H, ripe, np.inf)
        return np.fmin(until_ahead, until_ripe)

    def _bill(self, step: Floats) -> None:
        state = self.state
        # Nothing is billed before the first machine has come.
        rented = state.spot_h + state.on_demand_h > 0.0
        waiting = ~(state.on_spot | state.on_demand) & rented
        state.spot_h = state.spot_h + step * state.on_spot
        state.on_demand_h = state.on_demand_h + step * state.on_demand
        billed_before = np.minimum(state.waited, self.runs.keep_h)
        state.waited = np.where(waiting, state.waited + step, 0.0)
        billed_now = np.minimum(state.waited, self.runs.keep_h)
        state.idle_h = state.idle_h + waiting * (billed_now - billed_before)

    def _record(self, finished: Bools, stranded: Bools) -> None:
        rows = np.flatnonzero(finished)
        if not len(rows):
            return
        state = self.state
        runs = take(self.runs, rows)
        outcome = self.outcome
        original = state.row[rows]
        spot_h = state.spot_h[rows]
        on_demand_h = state.on_demand_h[rows]
        outcome.finish_h[original] = np.where(stranded[rows], np.inf, state.now[rows])
        outcome.spot_h[original] = spot_h
        outcome.on_demand_h[original] = on_demand_h
        outcome.evictions[original] = state.evictions[rows]
        rent = spot_h * runs.spot_usd + on_demand_h * runs.on_demand_usd
        outcome.usd[original] = rent + state.idle_h[rows] * runs.idle_usd
        state.alive[rows] = False

    def _toggle(self, rows: Ints) -> None:
        """Let capacity come or go at these rows.

        Runs on capacity that goes are evicted, and keep the work that they committed.
        """
        state = self.state
        evicted = rows[state.on_spot[rows]]
        state.on_spot[evicted] = False
        # The end of a flex-start node is announced days ahead: a checkpoint is taken, nothing is
        # lost.
        if not self.paths.planned:
            state.evictions[evicted] += 1
            state.done[evicted] = self._sum_checkpoints(evicted)
        # The exact moment, not the sum of steps that led to it: rounding would add up over a year
        # of toggles.
        state.now[rows] = state.toggle[rows]
        state.edge[rows] += 1
        self._look_up(rows)
        # Patience counts from here, also for runs that were not on it.
        up_rows = rows[state.up[rows]]
        state.up_since[up_rows] = state.now[up_rows]

    def _sum_checkpoints(self, rows: Ints) -> Floats:
        state = self.state
        runs = take(self.runs, rows)
        with np.errstate(divide="ignore", invalid="ignore"):
            # A checkpoint counts when it is complete; half of one is none.
            checkpoints = np.floor(state.ran[rows] / runs.period_h + EPS_H)
            work = checkpoints * runs.interval_h
        work = np.where(np.isinf(runs.interval_h), 0.0, work)
        saved = state.resumed[rows] + work
        return np.where(runs.interval_h > 0, saved, state.done[rows])

    def _look_up(self, rows: Ints) -> None:
        state = self.state
        path = self.runs.path[rows]
        edge = state.edge[rows]
        last_edge = self.paths.edges_h.shape[1] - 1
        hours = self.paths.edges_h[path, np.minimum(edge, last_edge)]
        toggle = np.where(edge > last_edge, np.inf, hours)
        state.toggle[rows] = toggle - self.runs.offset_h[rows]
        is_toggled = edge % 2 == 1
        state.up[rows] = self.paths.starts_up[path] ^ is_toggled


def _first_edge(runs: Runs, paths: Paths) -> Ints:
    """Count the toggles that each run's path has behind it when the run begins."""
    edge = np.zeros(len(runs), np.int64)
    late_starts = np.flatnonzero(runs.offset_h > 0.0)
    # Path by path: rows are padded with inf, so that one search over all of them would need a key
    # for each.
    for path in np.unique(runs.path[late_starts]):
        rows = late_starts[runs.path[late_starts] == path]
        edge[rows] = np.searchsorted(paths.edges_h[path], runs.offset_h[rows], side="right")
    return edge
