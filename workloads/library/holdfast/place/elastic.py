"""Many runs of an elastic gang at once: it works with the nodes that are there, from `least` to `nodes` of them.

Capacity is a count over time, not a yes or no. A lost node costs its share until a replacement runs; only when fewer
than `least` are left does the gang stop, save and give its nodes back. Constants of shrinking and growing are bounds
that `make bench-elastic` keeps.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from holdfast.place.decisions import EPS_H
from holdfast.place.hazard import lifetimes, residuals
from holdfast.place.runs import Bools, Floats, Ints, Outcome

# A death and the redone step; what survivors stand still while a newcomer gets the state.
SHRINK_H, GROW_H = 2 / 3600, 3 / 3600
HOLD_H = 60 / 3600
SHARDS_A_NODE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    nodes: int
    least: int
    shards: int
    """Of a step, whatever the number of nodes; the node with most of them sets the pace."""
    restart_h: float
    interval_h: float = 0.0
    checkpoint_h: float = 0.0
    shrink_h: float = SHRINK_H
    grow_h: float = GROW_H
    hold_h: float = HOLD_H
    join_h: float | None = None
    """From a newcomer's machine to its first step; None: a restart."""

    def speed(self, count: Ints) -> Floats:
        """Of the whole gang; 0 below the least."""
        most = np.ceil(self.shards / np.maximum(count, 1))
        saving = self.interval_h / (self.interval_h + self.checkpoint_h) if self.interval_h > 0 else 1.0
        return np.where(count >= self.least, math.ceil(self.shards / self.nodes) / most * saving, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Nodes that are there: `count[:, j]` until `edges_h[:, j]`, a row for each run; the last ones for good."""

    edges_h: Floats
    count: Ints


def drawn(
    rng: np.random.Generator, churn: Floats, *, units: int, nodes: int, first_h: Floats, waits_h: Floats,
    settled: bool = False,
) -> Counts:  # fmt: skip
    """`units` equal groups of the nodes, each lost as one and independently of the others.

    churn: of one group an hour, a value for each run. first_h: (runs, units), until each group first comes; waits_h:
    (runs, units, spells), how long it stays away after each loss. settled: groups begin at any age.
    """
    runs, _, spells = waits_h.shape
    spans = lifetimes(rng, np.repeat(churn, units), spells).reshape(waits_h.shape)
    if settled:
        spans[:, :, 0] = residuals(rng, np.repeat(churn, units)).reshape(runs, units)
    starts = np.concatenate([np.zeros((runs, units, 1)), (spans + waits_h).cumsum(axis=2)], axis=2)
    comes = first_h[:, :, None] + starts
    goes = comes[:, :, :-1] + spans
    edges = np.concatenate([comes.reshape(runs, -1), goes.reshape(runs, -1)], axis=1)
    order = np.argsort(edges, axis=1, kind="stable")
    change = np.repeat([1, -1], [comes[0].size, goes[0].size])[order] * (nodes // units)
    before = np.zeros((runs, 1), np.int64)
    return Counts(
        edges_h=np.take_along_axis(edges, order, axis=1), count=np.concatenate([before, change.cumsum(axis=1)], axis=1)
    )


def replayed(
    counts: list[Ints], gaps_h: list[float], nodes: int, path: Ints, offset_h: Floats, tiles: int = 4,
    until_h: float = math.inf,
) -> Counts:  # fmt: skip
    """Recorded counts, each run from its place on one of them; what outlasts a recording goes on at its beginning.

    until_h: of a run, after which nobody asks any more; the last count then stays.
    """
    rows = [_changes(np.minimum(np.tile(each, tiles), nodes), gap) for each, gap in zip(counts, gaps_h, strict=True)]
    cut = [_from(rows[each][0], rows[each][1], float(at), until_h) for each, at in zip(path, offset_h, strict=True)]
    longest = max(len(edges) for edges, _ in cut)
    all_edges, all_counts = np.full((len(cut), longest), np.inf), np.empty((len(cut), longest + 1), np.int64)
    for row, (edges, count) in enumerate(cut):
        all_edges[row, : len(edges)] = edges
        all_counts[row, : len(count)], all_counts[row, len(count) :] = count, count[-1]
    return Counts(edges_h=all_edges, count=all_counts)


def _changes(counts: Ints, gap_h: float) -> tuple[Floats, Ints]:
    at = np.flatnonzero(np.diff(counts)) + 1
    return (at * gap_h).astype(np.float64), np.concatenate([counts[:1], counts[at]])


def _from(edges_h: Floats, count: Ints, offset_h: float, until_h: float) -> tuple[Floats, Ints]:
    past, end = np.searchsorted(edges_h, [offset_h, offset_h + until_h], side="right")
    return edges_h[past:end] - offset_h, count[past : end + 1]


@dataclass(slots=True, kw_only=True)
class _State:
    now: Floats
    done: Floats
    stall: Floats
    """What is left of a restart, a shrink or a grow."""
    node_h: Floats
    losses: Floats
    alive: Bools


def simulate(
    gang: Gang, counts: Counts, *, work_h: float, deadline_h: float = math.inf, in_time: bool = False,
    spot_usd: float = 1.0, on_demand_usd: float = 1.0,
) -> Outcome:  # fmt: skip
    """Every run to its end; prices are of all nodes an hour, and so are the hours of the outcome.

    in_time: the whole gang moves to on-demand at the last moment that keeps the deadline, and stays there.
    """
    finish, demand_h = np.full((2, len(counts.edges_h)), np.inf)
    demand_h[:] = 0.0
    state = _begin(len(finish))
    reserve = 2 * gang.restart_h + gang.interval_h if in_time else -np.inf
    for before, count, end in _stretches(counts):
        _change(gang, state, before, count)
        done, bought = _work(gang, state, count, end, work_h, deadline_h - reserve)
        finish[done] = state.now[done]
        left = work_h - state.done[bought] + gang.restart_h
        finish[bought], demand_h[bought] = state.now[bought] + left, left
        state.alive &= ~(done | bought)
        if not state.alive.any():
            break
    spot_h = state.node_h / gang.nodes
    usd = spot_h * spot_usd + demand_h * on_demand_usd
    return Outcome(finish_h=finish, usd=usd, spot_h=spot_h, on_demand_h=demand_h, evictions=state.losses)


def watch(gang: Gang, counts: Counts) -> tuple[Floats, Floats]:
    """Useful and billed hours, of all nodes, until the last change: for work that has no end."""
    state = _begin(len(counts.edges_h))
    for before, count, end in _stretches(counts):
        _change(gang, state, before, count)
        _work(gang, state, count, end, math.inf, math.inf)
    return state.done, state.node_h / gang.nodes


def _begin(runs: int) -> _State:
    now, done, stall, node_h, losses = np.zeros((5, runs))
    return _State(now=now, done=done, stall=stall, node_h=node_h, losses=losses, alive=np.ones(runs, bool))


def _stretches(counts: Counts) -> Iterator[tuple[Ints, Ints, Floats]]:
    """The count before, the count, and until when; the last one without end."""
    before = np.zeros(len(counts.edges_h), np.int64)
    ends = [*counts.edges_h.T, np.full(len(counts.edges_h), np.inf)]
    for count, end in zip(counts.count.T, ends, strict=True):
        yield before, count, end
        before = count


def _change(gang: Gang, state: _State, before: Ints, count: Ints) -> None:
    """From one count to the next: what it costs in work and in time."""
    was, now = before >= gang.least, count >= gang.least
    fewer, more = was & (count < before), was & now & (count > before)
    state.losses += fewer & state.alive
    # Below the least it saves what it can; half a period stands for what it cannot.
    state.done -= np.where(was & ~now & state.alive, np.minimum(state.done, gang.interval_h / 2), 0.0)
    state.stall = np.where(now, state.stall, 0.0)
    state.stall += np.where(fewer & now, gang.shrink_h, 0.0)
    # A newcomer is billed from its start; its share of the work begins when it has loaded what it needs.
    join_h = gang.restart_h if gang.join_h is None else gang.join_h
    state.stall += np.where(more, gang.grow_h + join_h * (count - before) / np.maximum(count, 1), 0.0)
    state.stall = np.where(~was & now, gang.restart_h, state.stall)


def _work(gang: Gang, state: _State, count: Ints, end: Floats, work_h: float, latest_h: float) -> tuple[Bools, Bools]:
    """On to the next change; which runs end before it, and which run out of slack first and are at that moment."""
    speed, left = gang.speed(count), work_h - state.done
    works = speed > 0
    stall = np.where(works, state.stall, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        room = latest_h - state.now - left
        until_done = np.where(works, stall + left / speed, np.inf)
        late = np.where(works & (room > stall), stall + (room - stall) / (1.0 - speed), room)
    late = np.maximum(np.where(np.isnan(late), np.inf, late), 0.0)
    step = np.minimum(np.minimum(np.maximum(end - state.now, 0.0), until_done), late)
    step = np.where(state.alive & np.isfinite(step), step, 0.0)
    held = np.where(state.node_h > 0.0, np.minimum(step, gang.hold_h), 0.0)
    billed = np.where(works, step, held)
    state.node_h += billed * count
    state.done += speed * np.maximum(step - stall, 0.0)
    state.stall = np.maximum(state.stall - step, 0.0)
    state.now += step
    done = state.alive & works & (state.done >= work_h - EPS_H)
    return done, state.alive & ~done & (step >= late - EPS_H) & np.isfinite(late)
