"""Many runs of an elastic gang at once: it works with the nodes that are there, from `least` to
`nodes` of them.

A lost node costs its share until a replacement runs; only with fewer than `least` does the gang
stop, save and give its nodes back. `make bench-elastic` keeps the constants of shrinking and
growing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

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
        if self.interval_h > 0:
            saving = self.interval_h / (self.interval_h + self.checkpoint_h)
        else:
            saving = 1.0
        return np.where(
            count >= self.least, math.ceil(self.shards / self.nodes) / most * saving, 0.0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Nodes that are there: `count[:, j]` until `edges_h[:, j]`, a row for each run; the last ones
    for good.
    """

    edges_h: Floats
    count: Ints


def drawn(
    rng: np.random.Generator,
    churn: Floats,
    *,
    units: int,
    nodes: int,
    first_h: Floats,
    waits_h: Floats,
    settled: bool = False,
) -> Counts:
    """`units` equal groups of the nodes, each lost as one and independently of the others.

    churn: of one group an hour, a value for each run. first_h: (runs, units), until each group
    first comes; waits_h: (runs, units, spells), how long it stays away after each loss. settled:
    groups begin at any age.
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
    count = np.concatenate([before, change.cumsum(axis=1)], axis=1)
    return Counts(edges_h=np.take_along_axis(edges, order, axis=1), count=count)


@dataclass(slots=True, kw_only=True)
class State:
    now: Floats
    done: Floats
    stall: Floats
    """What is left of a restart, a shrink or a grow."""
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
    """Every run to its end; the price is of all nodes an hour, and so are the hours of the outcome."""
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
    """From one count to the next, what that costs in work and in time, and the time until the next;
    which runs end.
    """
    was = before >= gang.least
    now = count >= gang.least
    fewer = was & (count < before)
    more = was & now & (count > before)
    state.losses += fewer & state.alive
    # Below the least it saves what it can; half a period is what it loses on average.
    state.done -= np.where(
        was & ~now & state.alive, np.minimum(state.done, gang.interval_h / 2), 0.0
    )
    state.stall = np.where(now, state.stall, 0.0)
    state.stall += np.where(fewer & now, gang.shrink_h, 0.0)
    # A newcomer is billed from its start; its share of the work begins when it has loaded what it
    # needs.
    join_h = gang.restart_h if gang.join_h is None else gang.join_h
    state.stall += np.where(
        more, gang.grow_h + join_h * (count - before) / np.maximum(count, 1), 0.0
    )
    state.stall = np.where(~was & now, gang.restart_h, state.stall)
    speed = gang.speed(count)
    works = speed > 0
    stall = np.where(works, state.stall, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        until_done = np.where(works, stall + (work_h - state.done) / speed, np.inf)
    hours = np.minimum(np.maximum(end - state.now, 0.0), until_done)
    hours = np.where(state.alive & np.isfinite(hours), hours, 0.0)
    held = np.where(state.node_h > 0.0, np.minimum(hours, gang.hold_h), 0.0)
    state.node_h += np.where(works, hours, held) * count
    state.done += speed * np.maximum(hours - stall, 0.0)
    state.stall = np.maximum(state.stall - hours, 0.0)
    state.now += hours
    return state.alive & works & (state.done >= work_h - EPS_H)


def begin(runs: int) -> State:
    now, done, stall, node_h, losses = np.zeros((5, runs))
    return State(
        now=now,
        done=done,
        stall=stall,
        node_h=node_h,
        losses=losses,
        alive=np.ones(runs, bool),
    )


def stretches(counts: Counts) -> Iterator[tuple[Ints, Ints, Floats]]:
    """The count before, the count, and until when; the last one without end."""
    before = np.zeros(len(counts.edges_h), np.int64)
    ends = [*counts.edges_h.T, np.full(len(counts.edges_h), np.inf)]
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
) -> tuple[list[Outcome], float]:
    """In each scenario, and how many times shorter the simulated job is."""
    fold = max(1.0, job.hours * world.churn.per_hour * units / MAX_LOSSES)
    gang = Gang(
        nodes=job.max_nodes,
        least=job.min_nodes,
        shards=SHARDS_A_NODE * job.max_nodes,
        restart_h=job.restart_h,
        interval_h=interval_h,
        checkpoint_h=job.checkpoint_h,
    )
    # Fewer nodes to begin with are there sooner.
    both = zip(
        world.scenarios(job, job.max_nodes), world.scenarios(job, job.min_nodes), strict=True
    )
    counts = [_counts(job, world, whole.waits, least.waits, units, fold) for whole, least in both]
    return [
        simulate(
            gang,
            each,
            work_h=job.hours / fold,
            spot_usd=spot_usd,
        )
        for each in counts
    ], fold


def _counts(
    job: Job,
    world: World,
    whole: Waits,
    least: Waits,
    units: int,
    fold: float,
) -> Counts:
    rng = np.random.default_rng(0)
    churn = np.maximum(world.churn.draw(rng, MOST_RUNS), 1e-6)
    mean = SLOWEST * job.hours / fold * float(np.quantile(churn, 0.9))
    lives = math.ceil(mean + 4.0 * math.sqrt(mean)) + 2
    runs = int(np.clip(SAMPLES / (2 * units * lives), FEWEST_RUNS, MOST_RUNS))
    # A replacement waits as the whole gang would.
    waits = whole.draw(rng, runs, 1 + units * lives)
    few = least.draw(rng, runs, 1)[:, 0]
    # The same luck for both: where the least wait long, all wait longer.
    few = np.sort(few)[np.argsort(np.argsort(waits[:, 0]))]
    first = np.repeat(np.maximum(few, waits[:, 0])[:, None], units, axis=1)
    first[:, : math.ceil(job.min_nodes * units / job.max_nodes)] = few[:, None]
    return drawn(
        rng,
        churn[:runs],
        units=units,
        nodes=job.max_nodes,
        first_h=first / fold,
        waits_h=waits[:, 1:].reshape(runs, units, lives),
        settled=fold > 1.0,
    )
