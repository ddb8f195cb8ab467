"""Which option to take, and why, in one sentence."""

import math

from holdfast.contract.capacity import Placement
from holdfast.contract.errors import Unjudged
from holdfast.place.belief import Option, World
from holdfast.place.break_even import Flip
from holdfast.place.job import Job

LATE_ALLOWED = 0.01
SAME_LATE = 0.002
# A more expensive option is taken when it costs this little more and its bad case ends this much sooner.
WORTH_USD, WORTH_TIME = 0.05, 0.10


def keeping(job: Job, options: list[Option]) -> list[Option]:
    """Those with a price and an end that keep the deadline in every scenario."""
    return [o for o in options if not o.refused and (math.isinf(job.deadline_h) or o.late <= LATE_ALLOWED)]


def choose(job: Job, options: list[Option]) -> Option:
    """The cheapest that keeps the deadline; a little more money for a much earlier bad case."""
    kept = keeping(job, options)
    if not kept:
        late = (f"{o.policy}: " + (o.refused or f"{o.late:.0%} late in the worst scenario") for o in options)
        raise Unjudged("no option has a price, an end and keeps the deadline: " + "; ".join(late))
    least = min(kept, key=lambda o: o.mean_usd)
    equal = [o for o in kept if o.costs_as(least)]
    punctual = min(o.late for o in equal) if math.isfinite(job.deadline_h) else 0.0
    # The first of equals in the order of the table: simulated means decide nothing that another sample would undo.
    cheapest = next(o for o in equal if math.isinf(job.deadline_h) or o.late <= punctual + SAME_LATE)
    worth = [
        o
        for o in kept
        if o.mean_usd <= cheapest.mean_usd * (1 + WORTH_USD)
        and o.finish_at(95) <= cheapest.finish_at(95) * (1 - WORTH_TIME)
    ]
    return min(worth, key=lambda o: o.finish_at(95), default=cheapest)


def reason(job: Job, world: World, options: list[Option], chosen: Option, flip: Flip | None) -> str:
    """One sentence with the numbers that decided."""
    turn = _turn(world, flip)
    demand = next((o for o in options if o.placement is Placement.ON_DEMAND and not o.refused), None)
    saved = below(chosen.mean_usd, demand.mean_usd) if demand else "the cheapest with a price"
    match chosen.placement:
        case Placement.SPOT:
            return f"Spot is {saved} with {chosen.usual.evictions:.1f} preemptions on average; {turn}."
        case Placement.FLEX_START:
            late = f", {chosen.late:.1%} late" if math.isfinite(job.deadline_h) else ""
            return f"flex-start ({chosen.policy}) runs undisturbed, {saved}{late}; {turn}."
        case Placement.HYBRID:
            late = "on time if on-demand is granted" if math.isfinite(job.deadline_h) else "it never waits"
            return f"{chosen.policy}: {saved}, {late}; {turn}."
        case Placement.ON_DEMAND:
            return f"no preemptible capacity keeps the deadline or saves money here; {turn}."


def below(usd: float, demand_usd: float) -> str:
    """`58% below on-demand`, and never `-0% below`."""
    share = 1 - usd / demand_usd
    if abs(share) < 0.005:
        return "at the price of on-demand"
    return f"{abs(share):.0%} {'below' if share > 0 else 'above'} on-demand"


def _turn(world: World, flip: Flip | None) -> str:
    if flip is None:
        return "no break-even: a price is missing, or the gang is elastic"
    against, now = flip.against.value, f"now {world.churn.per_hour:.2g}"
    if flip.churn_per_hour == 0.0:
        return f"Spot is no cheaper than {against} at any rate of preemption"
    if math.isinf(flip.churn_per_hour):
        return f"Spot is cheaper than {against} at any rate of preemption"
    return f"Spot stops paying against {against} above {flip.churn_per_hour:.2g} preemptions a node-hour ({now})"
