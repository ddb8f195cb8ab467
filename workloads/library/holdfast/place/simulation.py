"""Many runs of jobs at once, in continuous time, on capacity that comes and goes.

No clock ticks: each round every run goes to its own next event (capacity toggles, a line of its
policy is crossed, the work is done), so a deadline net acts at the exact moment. A move by the
policy keeps all work, an eviction what was committed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.place.policies import EPS_H, Lines, Moves, Policy, decide
from holdfast.place.simulation_arrays import Bools, Floats, Ints, Outcome, Paths, Runs, stack, take

COMPACT_BELOW = 0.75


def simulate(runs: Runs, paths: Paths, policy: Policy) -> Outcome:
    """Every run to its end."""
    return _simulate(runs, paths, policy.lines(runs))


def side_by_side(runs: Runs, paths: Paths, policies: Sequence[Policy]) -> list[Outcome]:
    """Each policy on the same runs, to the bit as alone: a round costs the interpreter the same for
    few runs and many.
    """
    count = len(runs)
    found = _simulate(
        stack([runs] * len(policies)), paths, stack([policy.lines(runs) for policy in policies])
    )
    return [take(found, slice(at, at + count)) for at in range(0, len(policies) * count, count)]


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
    """Work done, checkpoint cost spread evenly over it."""
    resumed: Floats
    """Work done when this machine was started."""
    warm: Floats
    """What is left of the restart."""
    ran: Floats
    """Hours on this machine after the restart."""
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
    """Hours of the wait that a run is in."""
    evictions: Floats


class Fleet:
    """The runs that are not finished; finished ones stay as ballast until it pays to drop them."""

    def __init__(self, runs: Runs, lines: Lines, paths: Paths) -> None:
        n = len(runs)
        self.runs = runs
        self.lines = lines
        self.paths = paths
        self.outcome = Outcome(**dict(zip(Outcome.__slots__, np.zeros((5, n)), strict=True)))
        zeros, no = np.zeros((12, n)), np.zeros((3, n), bool)
        self.state = _State(
            row=np.arange(n),
            alive=~no[0],
            now=zeros[0],
            done=zeros[1],
            resumed=zeros[2],
            warm=zeros[3],
            ran=zeros[4],
            on_spot=no[0],
            on_demand=no[1],
            up=no[2],
            up_since=zeros[5],
            toggle=zeros[6],
            edge=_first_edge(runs, paths),
            spot_h=zeros[7],
            on_demand_h=zeros[8],
            idle_h=zeros[9],
            evictions=zeros[10],
            waited=zeros[11],
        )
        self._look_up(np.arange(n))
        self._rates()

    def decide(self) -> Moves:
        """Which runs start, move or wait on now."""
        s = self.state
        left = self.runs.work_h - s.done
        moves = decide(
            self.lines,
            left_h=left,
            slack_h=self.runs.deadline_h - s.now - left,
            on_spot=s.on_spot,
            on_demand=s.on_demand,
            up=s.up,
            up_for_h=s.now - s.up_since,
        )
        # A start of either kind pays the whole restart again, also when it interrupts one.
        moved = moves.to_spot | moves.to_demand
        s.on_spot = (s.on_spot & ~moves.to_demand) | moves.to_spot
        s.on_demand = (s.on_demand & ~moves.to_spot) | moves.to_demand
        s.warm = np.where(moved, self.runs.restart_h, s.warm)
        s.resumed = np.where(moved, s.done, s.resumed)
        s.ran[moved] = 0.0
        return moves

    def advance(self) -> None:
        """Every run to its own next event."""
        s = self.state
        speed = np.where(s.on_spot, self.spot_speed, s.on_demand)
        left = self.runs.work_h - s.done
        step = self._until_next(speed, left)
        # No event ahead: the capacity never comes back. Left alone, the loop would not end.
        lost = np.isinf(step)
        # Zero and not inf: inf times a speed of 0 is not a number, and it would spread.
        step[lost | ~s.alive] = 0.0
        useful = np.maximum(step - s.warm, 0.0)
        s.now = s.now + step
        s.done = s.done + speed * useful
        s.warm = np.maximum(s.warm - step, 0.0)
        s.ran = s.ran + useful
        self._bill(step)
        finished = s.alive & (lost | (s.done >= self.runs.work_h - EPS_H))
        self._record(finished, lost)
        self._toggle(np.flatnonzero(s.alive & (s.now >= s.toggle - EPS_H)))

    def compact(self) -> None:
        if np.count_nonzero(self.state.alive) < COMPACT_BELOW * len(self.state.alive):
            # Copying costs as much as a round, so not after each finished run.
            keep = np.flatnonzero(self.state.alive)
            self.state = take(self.state, keep)
            self.runs = take(self.runs, keep)
            self.lines = take(self.lines, keep)
            self._rates()

    def _rates(self) -> None:
        period = self.runs.period_h
        # Continuous and absent checkpoints cost nothing while running; inf / inf is not a number.
        checkpointed = np.isfinite(period) & (self.runs.interval_h > 0)
        self.spot_speed = np.divide(
            self.runs.interval_h,
            period,
            out=np.ones_like(period),
            where=checkpointed,
        )

    def _until_next(self, speed: Floats, left: Floats) -> Floats:
        s = self.state
        lines = self.lines
        slack = self.runs.deadline_h - s.now - left
        # Without a deadline slack is infinite; what is not a number then is no event, and fmin
        # passes over it.
        with np.errstate(divide="ignore", invalid="ignore"):
            finish = s.warm + left / speed
            # While warming slack falls hour by hour; afterwards by the share that checkpoints take.
            room = slack - lines.leave
            left_at = np.where(room <= s.warm, room, s.warm + (room - s.warm) / (1.0 - speed))
            waited = slack - np.maximum(lines.enter, lines.wait_base + lines.wait_slope * left)
        step = np.minimum(finish, s.toggle - s.now)
        step = np.where(s.on_spot, np.fmin(step, left_at), step)
        step = np.where(s.on_spot | s.on_demand, step, np.fmin(step, waited))
        at = np.flatnonzero(s.on_demand & s.up)
        step[at] = np.fmin(step[at], self._may_return(at, slack[at], left[at]))
        return np.maximum(step, 0.0)

    def _may_return(self, at: Ints, slack: Floats, left: Floats) -> Floats:
        """Hours until these rows, on on-demand while Spot is there, are ahead enough or have been
        patient enough.
        """
        s = self.state
        lines = take(self.lines, at)
        with np.errstate(divide="ignore", invalid="ignore"):
            ahead = s.warm[at] + left - (slack - s.warm[at] - lines.back_base) / lines.back_slope
        ripe = s.up_since[at] + lines.patience_h - s.now[at]
        return np.fmin(np.where(ahead > EPS_H, ahead, np.inf), np.where(ripe > EPS_H, ripe, np.inf))

    def _bill(self, step: Floats) -> None:
        s = self.state
        # Nothing is billed before the first machine has come.
        waiting = ~(s.on_spot | s.on_demand) & (s.spot_h + s.on_demand_h > 0.0)
        s.spot_h = s.spot_h + step * s.on_spot
        s.on_demand_h = s.on_demand_h + step * s.on_demand
        before = np.minimum(s.waited, self.runs.keep_h)
        s.waited = np.where(waiting, s.waited + step, 0.0)
        s.idle_h = s.idle_h + waiting * (np.minimum(s.waited, self.runs.keep_h) - before)

    def _record(self, finished: Bools, lost: Bools) -> None:
        at = np.flatnonzero(finished)
        if not len(at):
            return
        s = self.state
        runs = take(self.runs, at)
        out = self.outcome
        row = s.row[at]
        out.finish_h[row] = np.where(lost[at], np.inf, s.now[at])
        out.spot_h[row], out.on_demand_h[row], out.evictions[row] = (
            s.spot_h[at],
            s.on_demand_h[at],
            s.evictions[at],
        )
        rented = s.spot_h[at] * runs.spot_usd + s.on_demand_h[at] * runs.on_demand_usd
        out.usd[row] = rented + s.idle_h[at] * runs.idle_usd
        s.alive[at] = False

    def _toggle(self, at: Ints) -> None:
        """Capacity came or went at these rows; runs on it are evicted and keep what was committed."""
        s = self.state
        evicted = at[s.on_spot[at]]
        s.on_spot[evicted] = False
        # The end of a flex-start node is announced days ahead: a checkpoint is taken, nothing is
        # lost.
        if not self.paths.planned:
            s.evictions[evicted] += 1
            s.done[evicted] = self._committed(evicted)
        # The exact moment, not the sum of steps that led to it: rounding would add up over a year
        # of toggles.
        s.now[at] = s.toggle[at]
        s.edge[at] += 1
        self._look_up(at)
        # Patience counts from here, also for runs that were not on it.
        s.up_since[at] = np.where(s.up[at], s.now[at], s.up_since[at])

    def _committed(self, at: Ints) -> Floats:
        s = self.state
        runs = take(self.runs, at)
        with np.errstate(divide="ignore", invalid="ignore"):
            # A checkpoint counts when it is complete; half of one is none.
            whole = np.floor(s.ran[at] / runs.period_h + EPS_H) * runs.interval_h
        whole = np.where(np.isinf(runs.interval_h), 0.0, whole)
        return np.where(runs.interval_h > 0, s.resumed[at] + whole, s.done[at])

    def _look_up(self, at: Ints) -> None:
        s = self.state
        path = self.runs.path[at]
        last = self.paths.edges_h.shape[1] - 1
        edge = s.edge[at]
        hours = self.paths.edges_h[path, np.minimum(edge, last)]
        s.toggle[at] = np.where(edge > last, np.inf, hours) - self.runs.offset_h[at]
        s.up[at] = self.paths.starts_up[path] ^ (edge % 2 == 1)


def _first_edge(runs: Runs, paths: Paths) -> Ints:
    """How many toggles each run's path has behind it when the run begins."""
    edge = np.zeros(len(runs), np.int64)
    begun = np.flatnonzero(runs.offset_h > 0.0)
    # Path by path: rows are padded with inf, so that one search over all of them would need a key
    # for each.
    for path in np.unique(runs.path[begun]):
        at = begun[runs.path[begun] == path]
        edge[at] = np.searchsorted(paths.edges_h[path], runs.offset_h[at], side="right")
    return edge
