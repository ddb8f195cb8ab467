"""Simulates many runs of an elastic gang at once, which works with any number of its nodes.

A lost node costs its share until a replacement runs; only with fewer than `least` does the gang
stop, save and give its nodes back. `make bench-elastic` keeps the constants of shrinking and
growing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from holdfast.place.job import Job
from holdfast.place.options import World
from holdfast.place.policies import EPS_H
from holdfast.place.preemption_rate import lifetimes, residuals
from holdfast.place.scenarios import Waits
from holdfast.place.simulation_arrays import Bools, Floats, Ints, Outcome

# A death and the redone step; how long survivors pause while a newcomer gets the state.
SHRINK_H = 2 / 3600
GROW_H = 3 / 3600
# The same for a gang whose nodes divide the state again, with ranks that start again: rows "shrink,
# death" and "grow" of `make bench-peers`, on two cores.
SHARDED_SHRINK_H = 3 / 3600
SHARDED_GROW_H = 3 / 3600
HOLD_H = 60 / 3600
SHARDS_A_NODE = 6
MAX_LOSSES = 200
FEWEST_RUNS = 100
MOST_RUNS = 400
SAMPLES = 750_000
SLOWEST = 2.5  # times the work; what is lost later than that is not drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    nodes: int
    least: int
    shards: int
    """Shards of a step, whatever the number of nodes; the node with most of them sets the pace."""
    restart_h: float
    interval_h: float = 0.0
    checkpoint_h: float = 0.0
    shrink_h: float = SHRINK_H
    grow_h: float = GROW_H
    hold_h: float = HOLD_H
    join_h: float | None = None
    """Time between the start of a newcomer's machine and its first step; None: a restart."""

    def speed(self, count: Ints) -> Floats:
        """Return the speed of the whole gang with `count` nodes; 0 below `least`."""
        shards_per_node = np.ceil(self.shards / np.maximum(count, 1))
        fewest_shards = math.ceil(self.shards / self.nodes)
        if self.interval_h > 0:
            working_share = self.interval_h / (self.interval_h + self.checkpoint_h)
        else:
            working_share = 1.0
        speed = fewest_shards / shards_per_node * working_share
        return np.where(count >= self.least, speed, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The price of a state that is sharded over the nodes."""

    loss_h: float
    """Work that a lost node costs all: the steps since the version that the others have."""
    copying: float
    """Share of the time that copies to a neighbor take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The available nodes: `count[:, j]` until `edges_h[:, j]`, a row for each run.

    The last count has no end.
    """

    edges_h: Floats
    count: Ints


def draw_counts(
    rng: np.random.Generator,
    churn: Floats,
    *,
    units: int,
    nodes: int,
    first_h: Floats,
    waits_h: Floats,
    settled: bool = False,
) -> Counts:
    """Draw the available nodes: `units` equal groups, each lost as one and independently.

    churn: losses of one group an hour, a value for each run. first_h: (runs, units), until each
    group first comes; waits_h: (runs, units, spells), how long it stays away after each loss.
    settled: groups begin at any age.
    """
    runs, _, spells = waits_h.shape
    spans = lifetimes(rng, np.repeat(churn, units), spells).reshape(waits_h.shape)
    if settled:
        ages = residuals(rng, np.repeat(churn, units))
        spans[:, :, 0] = ages.reshape(runs, units)
    cycles = (spans + waits_h).cumsum(axis=2)
    starts = np.concatenate([np.zeros((runs, units, 1)), cycles], axis=2)
    arrivals = first_h[:, :, None] + starts
    losses = arrivals[:, :, :-1] + spans
    arrival_edges = arrivals.reshape(runs, -1)
    loss_edges = losses.reshape(runs, -1)
    edges = np.hstack([arrival_edges, loss_edges])
    order = np.argsort(edges, axis=1, kind="stable")
    signs = np.repeat([1, -1], [arrival_edges.shape[1], loss_edges.shape[1]])
    change = signs[order] * (nodes // units)
    before = np.zeros((runs, 1), np.int64)
    count = np.hstack([before, change.cumsum(axis=1)])
    return Counts(edges_h=np.take_along_axis(edges, order, axis=1), count=count)


@dataclass(slots=True, kw_only=True)
class State:
    now: Floats
    done: Floats
    stall: Floats
    """Remaining hours of a restart, a shrink or a grow."""
    node_h: Floats
    losses: Floats
    alive: Bools


def simulate(
    gang: Gang,
    counts: Counts,
    *,
    work_h: float,
    spot_usd: float = 1.0,
) -> Outcome:
    """Simulate every run to its end.

    The price is of all nodes an hour, and the hours of the outcome are of all nodes too.
    """
    finish = np.full(len(counts.edges_h), np.inf)
    state = begin(len(finish))
    for before, count, end in stretches(counts):
        done = step(gang, state, before, count, end, work_h)
        finish[done] = state.now[done]
        state.alive &= ~done
        if not state.alive.any():
            break
    spot_h = state.node_h / gang.nodes
    return Outcome(
        finish_h=finish,
        usd=spot_h * spot_usd,
        spot_h=spot_h,
        on_demand_h=np.zeros_like(spot_h),
        evictions=state.losses,
    )


def step(
    gang: Gang,
    state: State,
    before: Ints,
    count: Ints,
    end: Floats,
    work_h: float,
) -> Bools:
    """Change the number of nodes, and simulate until it changes again.

    Returns the runs that end in this time.
    """
    _change_count(gang, state, before, count)
    speed = gang.speed(count)
    works = speed > 0
    stall = np.where(works, state.stall, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        until_done = stall + (work_h - state.done) / speed
    until_done = np.where(works, until_done, np.inf)
    hours = np.minimum(np.maximum(end - state.now, 0.0), until_done)
    hours = np.where(state.alive & np.isfinite(hours), hours, 0.0)
    # A gang that has stopped gives its nodes back after the hold.
    held_h = np.minimum(hours, gang.hold_h)
    held_h = np.where(state.node_h > 0.0, held_h, 0.0)
    state.node_h += np.where(works, hours, held_h) * count
    state.done += speed * np.maximum(hours - stall, 0.0)
    state.stall = np.maximum(state.stall - hours, 0.0)
    state.now += hours
    return state.alive & works & (state.done >= work_h - EPS_H)


def _change_count(gang: Gang, state: State, before: Ints, count: Ints) -> None:
    """Apply what a change of the number of nodes costs, in work and in time."""
    worked = before >= gang.least
    works = count >= gang.least
    shrinks = worked & (count < before)
    grows = worked & works & (count > before)
    state.losses += shrinks & state.alive
    # Below the least it saves what it can; half a period is what it loses on average.
    undone = np.minimum(state.done, gang.interval_h / 2)
    stops = worked & ~works & state.alive
    state.done -= np.where(stops, undone, 0.0)
    state.stall = np.where(works, state.stall, 0.0)
    state.stall += np.where(shrinks & works, gang.shrink_h, 0.0)
    # A newcomer is billed from its start; its share of the work begins when it has loaded what it
    # needs.
    join_h = gang.restart_h if gang.join_h is None else gang.join_h
    newcomers = count - before
    grow_h = gang.grow_h + join_h * newcomers / np.maximum(count, 1)
    state.stall += np.where(grows, grow_h, 0.0)
    state.stall = np.where(~worked & works, gang.restart_h, state.stall)


def begin(runs: int) -> State:
    return State(
        now=np.zeros(runs),
        done=np.zeros(runs),
        stall=np.zeros(runs),
        node_h=np.zeros(runs),
        losses=np.zeros(runs),
        alive=np.ones(runs, bool),
    )


def stretches(counts: Counts) -> Iterator[tuple[Ints, Ints, Floats]]:
    """Yield the count before, the count, and its end; the last one has no end."""
    runs = len(counts.edges_h)
    before = np.zeros(runs, np.int64)
    ends = [*counts.edges_h.T, np.full(runs, np.inf)]
    for count, end in zip(counts.count.T, ends, strict=True):
        yield before, count, end
        before = count


def outcomes(
    job: Job,
    world: World,
    *,
    units: int,
    spot_usd: float,
    interval_h: float,
    sharding: Sharding | None = None,
) -> tuple[list[Outcome], float]:
    """Return the outcome of each scenario, and how many times shorter the simulated job is.

    `sharding`: what a gang of a sharded state pays in addition.
    """
    fold = max(1.0, job.hours * world.churn.per_hour * units / MAX_LOSSES)
    gang = Gang(
        nodes=job.max_nodes,
        least=job.min_nodes,
        shards=SHARDS_A_NODE * job.max_nodes,
        restart_h=job.restart_h,
        interval_h=interval_h,
        checkpoint_h=job.checkpoint_h,
    )
    if sharding:
        gang = replace(
            gang,
            shrink_h=SHARDED_SHRINK_H + sharding.loss_h,
            grow_h=SHARDED_GROW_H,
            checkpoint_h=job.checkpoint_h + sharding.copying * interval_h,
        )
    # The gang can begin with fewer nodes, which come sooner.
    largest_gang = world.scenarios(job, job.max_nodes)
    smallest_gang = world.scenarios(job, job.min_nodes)
    results: list[Outcome] = []
    for largest, smallest in zip(largest_gang, smallest_gang, strict=True):
        counts = _draw_counts(job, world, largest.waits, smallest.waits, units, fold)
        outcome = simulate(
            gang,
            counts,
            work_h=job.hours / fold,
            spot_usd=spot_usd,
        )
        results.append(outcome)
    return results, fold


def _draw_counts(
    job: Job,
    world: World,
    largest: Waits,
    smallest: Waits,
    units: int,
    fold: float,
) -> Counts:
    """Draw the available nodes; `largest` and `smallest` are the waits for these sizes."""
    rng = np.random.default_rng(0)
    churn = np.maximum(world.churn.draw(rng, MOST_RUNS), 1e-6)
    high_churn = float(np.quantile(churn, 0.9))
    mean_losses = SLOWEST * job.hours / fold * high_churn
    lives = math.ceil(mean_losses + 4.0 * math.sqrt(mean_losses)) + 2
    affordable_runs = SAMPLES / (2 * units * lives)
    runs = int(np.clip(affordable_runs, FEWEST_RUNS, MOST_RUNS))
    # A replacement waits as the whole gang would.
    waits = largest.draw(rng, runs, 1 + units * lives)
    first_of_all = waits[:, 0]
    first_of_some = smallest.draw(rng, runs, 1)[:, 0]
    # The same luck for both: where the smallest gang waits long, the largest waits longer.
    ranks = np.argsort(np.argsort(first_of_all))
    first_of_some = np.sort(first_of_some)[ranks]
    first_of_all = np.maximum(first_of_some, first_of_all)
    first_h = np.repeat(first_of_all[:, None], units, axis=1)
    early_units = math.ceil(job.min_nodes * units / job.max_nodes)
    first_h[:, :early_units] = first_of_some[:, None]
    return draw_counts(
        rng,
        churn[:runs],
        units=units,
        nodes=job.max_nodes,
        first_h=first_h / fold,
        waits_h=waits[:, 1:].reshape(runs, units, lives),
        settled=fold > 1.0,
    )
