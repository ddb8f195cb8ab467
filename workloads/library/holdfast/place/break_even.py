"""The churn at which Spot costs as much as its rival, and what a job costs in a region without
simulating it.

The model of the simulator without a clock. Closed forms assume lives without memory and are wrong
by an order of magnitude for short jobs, whose machines are always young. The same draws at every
churn, so that the answer is smooth.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from holdfast.place import advice, preemption_rate
from holdfast.place.advice import FLEX_MAX_RUN_H
from holdfast.place.job import Job
from holdfast.place.options import World
from holdfast.place.scenarios import Waits
from holdfast.place.simulation_arrays import Floats
from holdfast.vocabulary.capacity import Capacity

SAMPLES = 30_000
LIVES = 96
MIN_CHURN = 1e-5
MAX_CHURN = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """Spot costs as much as `against` at this churn of a node; inf: it never does; 0: it always
    does.
    """

    against: Capacity
    churn_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    region: str
    capacity: Capacity
    usd: float
    """inf where nothing has a price."""


def flip(job: Job, world: World, region: str) -> Flip | None:
    """Of money alone, without the deadline; None when a price is missing, or for an elastic gang."""
    found = _rival(job, world, region)
    spot = advice.quote(job, world, region, Capacity.SPOT)
    if found is None or spot is None or job.elastic:
        return None
    waits = _waits(job, world)
    churn = _threshold(lambda churn: spot.usd * slowdown(job, waits, churn) < found[1])
    return Flip(against=found[0], churn_per_hour=churn)


def estimates(
    job: Job,
    world: World,
    regions: Iterable[str],
    *,
    with_spot: bool,
) -> list[Estimate]:
    """Of each region the cheapest single capacity, cheapest first; without queues and deadlines,
    which hardly change it.
    """
    slow = slowdown(job, _waits(job, world), world.churn.per_hour) if with_spot else math.inf
    found: list[Estimate] = []
    for region in regions:
        best = _rival(job, world, region) or (Capacity.ON_DEMAND, math.inf)
        spot = advice.quote(job, world, region, Capacity.SPOT)
        if spot:
            best = min(best, (Capacity.SPOT, spot.usd * slow), key=lambda each: each[1])
        found.append(
            Estimate(
                region=region,
                capacity=best[0],
                usd=best[1] * job.hours,
            )
        )
    return sorted(found, key=lambda each: each.usd)


def slowdown(job: Job, waits: Waits, churn: float) -> float:
    """Billed hours of one node for an hour of work of a rigid gang on Spot, at `churn` evictions a
    node-hour.
    """
    rate = advice.job_churn(job, churn)
    interval, checkpoint_h = advice.kept(job, rate)
    fold = max(1.0, rate * job.hours / (LIVES / 4.0)) if job.resumable or job.batch else 1.0
    spans = _drawn(rate, advice.groups(job), fold > 1.0)
    hours, evictions = _until_done(spans, job.hours / fold, job.restart_h, interval, checkpoint_h)
    # A machine alone leaves no survivors that are billed while they wait.
    if job.nodes > 1 and not job.batch:
        hours = (
            hours
            + evictions
            * waits.mean_billed_h(advice.billed_wait_h(job))
            * (job.nodes - 1)
            / job.nodes
        )
    # The first restart comes once, however often the job is folded.
    return (float(np.mean(hours)) - job.restart_h * (1.0 - 1.0 / fold)) * fold / job.hours


def _waits(job: Job, world: World) -> Waits:
    found = world.scenarios(job)
    return found[len(found) // 2].waits


@lru_cache(maxsize=8)
def _drawn(rate: float, groups: int, settled: bool) -> Floats:
    churn = np.full(max(60, SAMPLES // max(LIVES, 12 * groups)), rate / groups)
    return preemption_rate.gang_lives(
        np.random.default_rng(0),
        churn,
        units=groups,
        per_path=LIVES,
        settled=settled,
    )


def _until_done(
    spans: Floats,
    work_h: float,
    restart_h: float,
    interval_h: float,
    block_h: float,
) -> tuple[Floats, Floats]:
    """Machine hours and evictions of each run that only ever waits for Spot. Work that the spans do
    not hold goes on at their pace; inf where they hold none.
    """
    useful = np.maximum(spans - restart_h, 0.0)
    # Without checkpoints the period is infinite, and inf / inf is not a number.
    period = interval_h + block_h if math.isfinite(interval_h) else math.inf
    if math.isfinite(period):
        committed = np.floor(useful / period + 1e-9) * interval_h
    else:
        committed = np.zeros_like(useful)
    speed = interval_h / period if math.isfinite(period) else 1.0
    before = np.cumsum(committed, axis=1) - committed
    # A run may end between two checkpoints, so the last stretch counts in full.
    ends = before + useful * speed >= work_h
    last = np.argmax(ends, axis=1)
    rows = np.arange(len(spans))
    done = ends.any(axis=1)
    spent = np.cumsum(spans, axis=1) - spans
    hours = spent[rows, last] + restart_h + (work_h - before[rows, last]) / speed
    with np.errstate(divide="ignore"):
        share = work_h / committed.sum(axis=1)
    return (
        np.where(done, hours, spans.sum(axis=1) * share),
        np.where(done, last.astype(float), spans.shape[1] * share),
    )


def _rival(job: Job, world: World, region: str) -> tuple[Capacity, float] | None:
    """The cheaper of flex-start and on-demand, in USD for a useful hour of the job."""
    found: dict[Capacity, float] = {}
    demand = advice.quote(job, world, region, Capacity.ON_DEMAND)
    if demand:
        found[Capacity.ON_DEMAND] = demand.usd * (job.hours + job.restart_h) / job.hours
    fits = job.resumable or job.batch or job.hours + job.restart_h <= FLEX_MAX_RUN_H
    if fits and (flex := advice.quote(job, world, region, Capacity.FLEX_START)):
        # A restart for each node, and no lost work: its end is known.
        nodes = math.ceil(job.hours / max(FLEX_MAX_RUN_H - job.restart_h, 1e-9))
        found[Capacity.FLEX_START] = flex.usd * (job.hours + nodes * job.restart_h) / job.hours
    return min(
        found.items(),
        key=lambda item: (round(item[1], 9), item[0] is Capacity.FLEX_START),
        default=None,
    )


def _threshold(pays: Callable[[float], bool]) -> float:
    """The largest churn at which Spot still pays: 0 where it never does, inf where it always does."""
    low = MIN_CHURN
    high = MAX_CHURN
    if not pays(low):
        return 0.0
    if pays(high):
        return math.inf
    # Halved by its logarithm: the range spans eight orders of magnitude. 14 times leave a tenth of
    # a percent.
    for _ in range(14):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if pays(middle) else (low, middle)
    return math.sqrt(low * high)
