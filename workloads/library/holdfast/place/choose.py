"""Which option to take, in one sentence, and where the answer would turn.

The flip points are stated per running node-hour, the unit that monitoring measures, as a mean over machines of all
ages.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from holdfast.contract.capacity import Capacity, Placement
from holdfast.contract.errors import Unjudged
from holdfast.place import advice, forms
from holdfast.place.advice import FLEX_MAX_RUN_H
from holdfast.place.belief import Option, World
from holdfast.place.job import Job
from holdfast.place.renewals import Curve

LATE_ALLOWED = 0.01
SAME_LATE = 0.002
# A dearer option is taken when it is this little dearer and its bad case this much sooner.
WORTH_USD, WORTH_TIME = 0.05, 0.10
MIN_CHURN, MAX_CHURN = 1e-5, 1e3
MAX_LIMIT_H = 24.0 * 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Spot costs as much as `against` at any one of these; inf: it never does; 0: it always does."""

    against: Capacity
    churn_per_hour: float
    restart_h: float
    checkpoint_h: float


def keeping(job: Job, options: list[Option]) -> list[Option]:
    """Those with a price and an end that keep the deadline, as surely as on-demand itself would.

    What only waits for recorded Spot has to keep it in every week of the record: its mean is of weeks that are over.
    """
    return _keeping(job, options, lambda option: option.late_at_most)


def _keeping(job: Job, options: list[Option], late: Callable[[Option], float]) -> list[Option]:
    return [o for o in options if not o.refused and (math.isinf(job.deadline_h) or late(o) <= LATE_ALLOWED + o.refusal)]


def choose(job: Job, options: list[Option]) -> Option:
    """The cheapest that keeps the deadline; a little more money for a much earlier bad case."""
    kept = keeping(job, options)
    if not kept:
        late = (f"{o.policy}: " + (o.refused or f"{o.late_text} late") for o in options)
        raise Unjudged("no option has a price, an end and keeps the deadline: " + "; ".join(late))
    kept = _watched(job, kept)
    least = min(kept, key=lambda o: o.mean_usd)
    equal = [o for o in kept if o.costs_as(least)]
    punctual = min(o.late for o in equal) if math.isfinite(job.deadline_h) else 0.0
    # The first of equals in the order of the table: simulated means decide nothing that another seed would undo.
    cheapest = next(o for o in equal if math.isinf(job.deadline_h) or o.late <= punctual + SAME_LATE)
    worth = [
        o
        for o in kept
        if o.mean_usd <= cheapest.mean_usd * (1 + WORTH_USD)
        and o.finish_at(95) <= cheapest.finish_at(95) * (1 - WORTH_TIME)
    ]
    return min(worth, key=lambda o: o.finish_at(95), default=cheapest)


def _watched(job: Job, kept: list[Option]) -> list[Option]:
    """Without those that only wait for Spot, where others watch the deadline: one week foretells too little of the next."""
    if math.isinf(job.deadline_h) or not any(o.placement is Placement.HYBRID for o in kept):
        return kept
    return [o for o in kept if o.placement is not Placement.SPOT]


def tie(job: Job, options: list[Option], chosen: Option) -> Option | None:
    """The other option that costs the same within the noise; None where the choice is clear."""
    others = [o for o in _watched(job, keeping(job, options)) if o is not chosen and o.costs_as(chosen)]
    return min(others, key=_usd, default=None)


def regret(job: Job, options: list[Option], chosen: Option) -> float:
    """What the choice costs above the cheapest that keeps the deadline on average, as a share of on-demand (or of itself)."""
    # By the mean, unlike the choice: so it is the price of not trusting that.
    kept = _keeping(job, options, lambda option: option.late)
    demand = next(
        (o.mean_usd for o in options if o.placement is Placement.ON_DEMAND and not o.refused), chosen.mean_usd
    )
    return (chosen.mean_usd - min(o.mean_usd for o in [chosen, *kept])) / demand


def _usd(option: Option) -> float:
    return option.mean_usd


def limits(job: Job, world: World, region: str, rows: Sequence[Option] = ()) -> Limits | None:
    """What would make Spot stop paying for this job; None when a price is missing. `rows`: what recordings did to it."""
    # A longer restart may break the deadline; here only money counts.
    job = replace(job, deadline_h=math.inf)
    rival = _rival(job, world, region)
    spot = advice.quote(job, world, region, Capacity.SPOT)
    if rival is None or spot is None:
        return None
    curve = Curve.of(job, world, region)
    now = world.churn.per_hour
    weight = _weight(job, rows, spot.usd, curve.slowdown(now)) if world.recorded else 1.0

    def pays(churn: float, restart_h: float = job.restart_h, checkpoint_h: float = job.checkpoint_h) -> bool:
        dearer = _rival(replace(job, restart_h=restart_h, checkpoint_h=checkpoint_h), world, region)
        slow = curve.slowdown(churn, restart_h=restart_h, checkpoint_h=checkpoint_h)
        return dearer is not None and spot.usd * (1 + weight * (slow - 1)) < dearer[1]

    return Limits(
        against=rival[0],
        churn_per_hour=_threshold(pays, MIN_CHURN, MAX_CHURN),
        restart_h=_threshold(lambda hours: pays(now, restart_h=hours), 1e-4, MAX_LIMIT_H),
        checkpoint_h=_threshold(lambda hours: pays(now, checkpoint_h=hours), 1e-6, MAX_LIMIT_H)
        if job.resumable and not job.batch
        else math.inf,
    )


def _weight(job: Job, rows: Sequence[Option], usd_per_hour: float, slow: float) -> float:
    """By how much recordings disturb the job more than drawn lives do at the same churn; so the flip fits the rows."""
    waits = [o.mean_usd for o in rows if o.placement is Placement.SPOT and not o.refused]
    if not waits or not 1 < slow < math.inf:
        return 1.0
    return (min(waits) / (usd_per_hour * job.hours) - 1) / (slow - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    region: str
    capacity: Capacity
    usd: float
    """inf where nothing has a price."""


def estimate(job: Job, world: World, region: str, *, with_spot: bool) -> Estimate:
    """The cheapest single capacity, without queues and deadlines."""
    # Queues and deadlines change what is chosen in a region, hardly which region is cheapest.
    best = _rival(job, world, region) or (Capacity.ON_DEMAND, math.inf)
    spot = advice.quote(job, world, region, Capacity.SPOT) if with_spot else None
    if spot is not None:
        usd = spot.usd * Curve.of(job, world, region).slowdown(world.churn.per_hour)
        best = min(best, (Capacity.SPOT, usd), key=lambda found: found[1])
    return Estimate(region=region, capacity=best[0], usd=best[1] * job.hours)


def reason(job: Job, world: World, options: list[Option], chosen: Option, flip: Limits | None) -> str:
    """One sentence with the numbers that decided."""
    turn = _turn(world, flip)
    by = {o.placement: o for o in reversed(options) if not o.refused}  # of two, the plain one
    demand = by.get(Placement.ON_DEMAND)
    saved = below(chosen.mean_usd, demand.mean_usd) if demand else "the cheapest with a price"
    match chosen.placement:
        case Placement.SPOT:
            return f"Spot is {saved} with {chosen.evictions:.1f} evictions on average; {turn}."
        case Placement.FLEX_START:
            late = f", {chosen.late:.1%} late" if math.isfinite(job.deadline_h) else ""
            return f"flex-start ({chosen.policy}) runs undisturbed at {saved}{late}{_against_spot(by, chosen)}; {turn}."
        case Placement.HYBRID:
            kept = (
                f"{chosen.late:.1%} late if on-demand is {granted(world)} when asked for"
                if math.isfinite(job.deadline_h)
                else "it never waits"
            )
            return f"{chosen.policy}: {saved}, {kept}; {turn}."
        case Placement.ON_DEMAND:
            return f"nothing that can be taken away keeps the deadline or saves money here; {turn}."


def granted(world: World) -> str:
    refused = world.on_demand_refused
    return f"granted {1 - refused:.1%} of the time" if refused else "granted"


def below(usd: float, demand_usd: float) -> str:
    """`58% below on-demand`, and never `-0% below`."""
    share = 1 - usd / demand_usd
    if abs(share) < 0.005:
        return "as dear as on-demand"
    return f"{abs(share):.0%} {'below' if share > 0 else 'above'} on-demand"


def _against_spot(by: dict[Placement, Option], chosen: Option) -> str:
    spot = by.get(Placement.SPOT)
    if spot is None:
        return ""
    more = chosen.mean_usd / spot.mean_usd - 1
    sooner = spot.finish_at(95) - chosen.finish_at(95)
    costs = f"{more:+.0%} against Spot" if abs(more) >= 0.005 else "as dear as Spot"
    return f", {costs}, and its bad case is {abs(sooner):.1f} h {'sooner' if sooner >= 0 else 'later'}"


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
    """The cheaper of flex-start and on-demand, in USD for a useful hour of the job."""
    demand = advice.quote(job, world, region, Capacity.ON_DEMAND)
    flex = advice.quote(job, world, region, Capacity.FLEX_START)
    start = (job.hours + job.restart_h) / job.hours
    found: dict[Capacity, float] = {}
    if demand is not None:
        found[Capacity.ON_DEMAND] = demand.usd * start
    fits = job.resumable or job.batch or job.hours + job.restart_h <= FLEX_MAX_RUN_H
    if flex is not None and fits:
        # The simulator's planned end loses nothing: the last checkpoint falls into the announced hours.
        hours = forms.planned_hours(job.hours, max_run_h=FLEX_MAX_RUN_H, checkpoint_h=0.0, restart_h=job.restart_h)
        found[Capacity.FLEX_START] = flex.usd * hours / job.hours
    return min(found.items(), key=lambda item: (round(item[1], 9), item[0] is Capacity.FLEX_START), default=None)


def _threshold(pays: Callable[[float], bool], low: float, high: float) -> float:
    """The largest value at which Spot still pays: 0 where it never does, inf where it does up to `high`."""
    if not pays(low):
        return 0.0
    if pays(high):
        return math.inf
    for _ in range(14):  # a tenth of a percent, far below the noise of any churn
        middle = math.sqrt(low * high)
        low, high = (middle, high) if pays(middle) else (low, middle)
    return math.sqrt(low * high)
