"""Which option to take, in one sentence, and where the answer would turn.

The flip points come from closed forms and are stated per running node-hour, the unit that monitoring measures;
`limits` is also the threshold of the goodput alert.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.contract.errors import Unjudged
from infra.contract.capacity import Capacity, Placement
from infra.placement import forms
from infra.placement.advice import FLEX_MAX_RUN_H, MICRO_BATCH_H, Option, World, job_churn
from infra.placement.job import Job

LATE_ALLOWED = 0.01
SAME_USD = 0.01  # closer costs are equal; then the one that is late less often
# A dearer option is taken when it is this little dearer and its bad case this much sooner.
WORTH_USD, WORTH_TIME = 0.05, 0.10
MAX_LIMIT_H = 24.0 * 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Spot costs as much as `against` at any one of these; inf: it never does; 0: it always does."""

    against: Capacity
    churn_per_hour: float
    restart_h: float
    checkpoint_h: float


def choose(job: Job, options: list[Option]) -> Option:
    """The cheapest that keeps the deadline; a little more money for a much earlier bad case."""
    usable = [o for o in options if not o.refused and (math.isinf(job.deadline_h) or o.late <= LATE_ALLOWED)]
    if not usable:
        raise Unjudged(
            "no option has both a price and an end: " + "; ".join(f"{o.policy}: {o.refused}" for o in options)
        )
    least = min(o.mean_usd for o in usable)
    equal = [o for o in usable if o.mean_usd <= least * (1 + SAME_USD)]
    cheapest = min(equal, key=lambda o: (math.isfinite(job.deadline_h) and o.late, o.mean_usd))
    worth = [
        o
        for o in usable
        if o.mean_usd <= cheapest.mean_usd * (1 + WORTH_USD)
        and o.finish_at(95) <= cheapest.finish_at(95) * (1 - WORTH_TIME)
    ]
    return min(worth, key=lambda o: o.finish_at(95), default=cheapest)


def limits(job: Job, world: World, region: str) -> Limits | None:
    """What would make Spot stop paying for this job; None when a price is missing."""
    # A longer restart may break the deadline; here only money counts.
    job = replace(job, deadline_h=math.inf)
    rival = _rival(job, world, region)
    spot = world.prices.quote(job.machine, region, Capacity.SPOT)
    if rival is None or spot is None:
        return None

    def pays(other: Job, churn: float) -> bool:
        dearer = _rival(other, world, region)
        return dearer is not None and spot.usd * _slow(other, world, churn) < dearer[1]

    now = world.churn.per_hour
    return Limits(
        against=rival[0],
        churn_per_hour=_edge(lambda churn: pays(job, churn), forms.MAX_CHURN),
        restart_h=_edge(lambda hours: pays(replace(job, restart_h=hours), now), MAX_LIMIT_H),
        checkpoint_h=_edge(lambda hours: pays(replace(job, checkpoint_h=hours), now), MAX_LIMIT_H)
        if job.resumable and not job.batch
        else math.inf,
    )


def reason(job: Job, world: World, options: list[Option], chosen: Option) -> str:
    """One sentence with the numbers that decided."""
    flip = limits(job, world, chosen.region)
    turn = _turn(world, flip)
    by = {o.placement: o for o in reversed(options) if not o.refused}  # of two, the plain one
    demand = by.get(Placement.ON_DEMAND)
    saved = f"{1 - chosen.mean_usd / demand.mean_usd:.0%} below on-demand" if demand else "the cheapest with a price"
    match chosen.placement:
        case Placement.SPOT:
            return f"Spot is {saved} with {chosen.evictions:.1f} evictions on average; {turn}."
        case Placement.FLEX_START:
            late = f", {chosen.late:.1%} late" if math.isfinite(job.deadline_h) else ""
            return f"flex-start ({chosen.policy}) runs undisturbed at {saved}{late}{_against_spot(by, chosen)}; {turn}."
        case Placement.HYBRID:
            kept = f"{chosen.late:.1%} late" if math.isfinite(job.deadline_h) else "it never waits"
            return f"Spot while it lasts and on-demand in time: {saved}, {kept}; {turn}."
        case Placement.ON_DEMAND:
            return f"nothing that can be taken away keeps the deadline or saves money here; {turn}."


def _against_spot(by: dict[Placement, Option], chosen: Option) -> str:
    spot = by.get(Placement.SPOT)
    if spot is None:
        return ""
    more = chosen.mean_usd / spot.mean_usd - 1
    sooner = spot.finish_at(95) - chosen.finish_at(95)
    return f", {more:+.0%} against Spot, and its bad case is {sooner:.1f} h {'sooner' if sooner >= 0 else 'later'}"


def _turn(world: World, flip: Limits | None) -> str:
    if flip is None:
        return "no flip point, a price is missing"
    now = f"now {world.churn.per_hour:.2g}"
    if flip.churn_per_hour == 0.0:
        return f"Spot is no cheaper than {flip.against.value} at any churn"
    if math.isinf(flip.churn_per_hour):
        return f"Spot stays cheaper than {flip.against.value} at any churn"
    return (
        f"Spot stops paying against {flip.against.value} above {flip.churn_per_hour:.2g} evictions a node-hour ({now})"
    )


def _rival(job: Job, world: World, region: str) -> tuple[Capacity, float] | None:
    """The cheaper of flex-start and on-demand, in USD for a useful hour of one node."""
    demand = world.prices.quote(job.machine, region, Capacity.ON_DEMAND)
    flex = world.prices.quote(job.machine, region, Capacity.FLEX_START)
    start = (job.hours + job.restart_h) / job.hours
    found: dict[Capacity, float] = {}
    if demand is not None:
        found[Capacity.ON_DEMAND] = demand.usd * start
    fits = job.resumable or job.batch or job.hours + job.restart_h <= FLEX_MAX_RUN_H
    if flex is not None and fits:
        last_h = job.checkpoint_h if job.resumable else 0.0
        hours = forms.planned_hours(job.hours, max_run_h=FLEX_MAX_RUN_H, checkpoint_h=last_h, restart_h=job.restart_h)
        found[Capacity.FLEX_START] = flex.usd * hours / job.hours
    return min(found.items(), key=lambda item: (round(item[1], 9), item[0] is Capacity.FLEX_START), default=None)


def _slow(job: Job, world: World, node_churn: float) -> float:
    """Billed node-hours on Spot for a useful one."""
    churn = job_churn(job, node_churn, world.together)
    if job.batch:
        work = forms.batch_slowdown(churn=churn, restart_h=job.restart_h, item_batch_h=MICRO_BATCH_H)
    elif not job.resumable:
        hours = forms.expected_hours_without_checkpoints(job.hours, churn=churn, restart_h=job.restart_h)
        work = hours / job.hours
    else:
        work = forms.slowdown(churn=churn, checkpoint_h=job.checkpoint_h, restart_h=job.restart_h)
    waiting = 0.0 if job.batch else churn * work * world.outage_h[0] * (job.nodes - 1) / job.nodes
    return work + waiting + job.restart_h / job.hours


def _edge(pays: Callable[[float], bool], most: float) -> float:
    """The largest value at which Spot still pays: 0 where it never does, inf where it does up to `most`."""
    low, high = most * 1e-9, most
    if not pays(low):
        return 0.0
    if pays(high):
        return math.inf
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low
