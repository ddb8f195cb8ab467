"""Finds the churn at which Spot costs as much as its rival, and estimates a job's cost by region.

It is the model of the simulator without a clock. Closed forms assume lives without memory and are
wrong by an order of magnitude for short jobs, whose machines are always young. Every churn uses the
same draws, so that the answer is smooth.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from holdfast.place import losses, preemption_rate
from holdfast.place.job import Job
from holdfast.place.losses import FLEX_MAX_RUN_H
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
    """The churn of a node at which Spot costs as much as `against`.

    inf: Spot is cheaper at any churn; 0: it is at none.
    """

    against: Capacity
    churn_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    region: str
    capacity: Capacity
    usd: float
    """The cost of the job; inf if nothing has a price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rate:
    capacity: Capacity
    usd: float
    """USD for a useful hour of the job."""


def flip(job: Job, world: World, region: str) -> Flip | None:
    """Return the break-even of money alone, without the deadline.

    Returns None if a price is missing, or for an elastic gang.
    """
    rival = _find_rival(job, world, region)
    spot = world.quote(job, region, Capacity.SPOT)
    if rival is None or spot is None or job.elastic:
        return None
    waits = _usual_waits(job, world)

    def is_spot_cheaper(churn: float) -> bool:
        return spot.usd * slowdown(job, waits, churn) < rival.usd

    churn = _threshold(is_spot_cheaper)
    return Flip(against=rival.capacity, churn_per_hour=churn)


def estimates(
    job: Job,
    world: World,
    regions: Iterable[str],
    *,
    with_spot: bool,
) -> list[Estimate]:
    """Return the cheapest single capacity of each region, cheapest first.

    Queues and deadlines are left out, since they hardly change the order.
    """
    slow = math.inf
    if with_spot:
        slow = slowdown(job, _usual_waits(job, world), world.churn.per_hour)
    regional: list[Estimate] = []
    for region in regions:
        rate = _find_rival(job, world, region)
        if rate is None:
            rate = _Rate(capacity=Capacity.ON_DEMAND, usd=math.inf)
        spot = world.quote(job, region, Capacity.SPOT)
        if spot and spot.usd * slow < rate.usd:
            rate = _Rate(capacity=Capacity.SPOT, usd=spot.usd * slow)
        regional.append(
            Estimate(
                region=region,
                capacity=rate.capacity,
                usd=rate.usd * job.hours,
            )
        )
    return sorted(regional, key=lambda estimate: estimate.usd)


def slowdown(job: Job, waits: Waits, churn: float) -> float:
    """Return the billed hours of one node for an hour of work of a rigid gang on Spot.

    churn: evictions a node-hour.
    """
    rate = losses.job_churn(job, churn)
    interval_h, checkpoint_h = losses.find_save_interval(job, rate)
    fold = 1.0
    if job.resumable or job.batch:
        fold = max(1.0, rate * job.hours / (LIVES / 4.0))
    spans = _draw_lives(rate, losses.count_groups(job), fold > 1.0)
    work_h = job.hours / fold
    hours, evictions = _until_done(spans, work_h, job.restart_h, interval_h, checkpoint_h)
    # A machine alone leaves no survivors that are billed while they wait.
    if job.nodes > 1 and not job.batch:
        wait_h = waits.mean_billed_h(losses.find_billed_wait(job))
        hours = hours + evictions * wait_h * (job.nodes - 1) / job.nodes
    # The first restart comes once, however often the job is folded.
    repeated_restart_h = job.restart_h * (1.0 - 1.0 / fold)
    return (float(np.mean(hours)) - repeated_restart_h) * fold / job.hours


def _usual_waits(job: Job, world: World) -> Waits:
    scenarios = world.scenarios(job)
    return scenarios[len(scenarios) // 2].waits


@lru_cache(maxsize=8)
def _draw_lives(rate: float, groups: int, settled: bool) -> Floats:
    paths = max(60, SAMPLES // max(LIVES, 12 * groups))
    churn = np.full(paths, rate / groups)
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
    """Return machine hours and evictions of each run that only ever waits for Spot.

    Work that the spans do not hold goes on at their pace; the hours are inf if they hold none.
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
    last_work_h = work_h - before[rows, last]
    hours = spent[rows, last] + restart_h + last_work_h / speed
    with np.errstate(divide="ignore"):
        share = work_h / committed.sum(axis=1)
    projected_hours = spans.sum(axis=1) * share
    projected_evictions = spans.shape[1] * share
    billed_hours = np.where(done, hours, projected_hours)
    evictions = np.where(done, last.astype(float), projected_evictions)
    return billed_hours, evictions


def _find_rival(job: Job, world: World, region: str) -> _Rate | None:
    """Return the cheaper of flex-start and on-demand; on-demand if they cost the same."""
    rates: list[_Rate] = []
    demand = world.quote(job, region, Capacity.ON_DEMAND)
    if demand:
        usd = demand.usd * (job.hours + job.restart_h) / job.hours
        rates.append(_Rate(capacity=Capacity.ON_DEMAND, usd=usd))
    flex = world.quote(job, region, Capacity.FLEX_START)
    can_stop = job.resumable or job.batch
    if flex and (can_stop or job.hours + job.restart_h <= FLEX_MAX_RUN_H):
        # A restart for each node, and no lost work: its end is known.
        node_work_h = max(FLEX_MAX_RUN_H - job.restart_h, 1e-9)
        nodes = math.ceil(job.hours / node_work_h)
        billed_h = job.hours + nodes * job.restart_h
        usd = flex.usd * billed_h / job.hours
        rates.append(_Rate(capacity=Capacity.FLEX_START, usd=usd))
    return min(rates, key=lambda rate: round(rate.usd, 9), default=None)


def _threshold(pays: Callable[[float], bool]) -> float:
    """Return the largest churn at which Spot still pays.

    Returns 0 if it never does, and inf if it always does.
    """
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
        if pays(middle):
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)
