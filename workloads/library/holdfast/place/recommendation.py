"""From the question of a user to one answer: beliefs, regions, choice."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from holdfast.cost.prices import load
from holdfast.place import advice, break_even, preemption_rate
from holdfast.place.break_even import Estimate, Flip
from holdfast.place.job import Job
from holdfast.place.matrix import Deadline
from holdfast.place.options import Option, World
from holdfast.support.errors import InputError, Unjudged
from holdfast.support.values import between
from holdfast.vocabulary.capacity import Placement

MAX_WAIT_H = 24.0 * 30


def world_of(job: Job, churn: str = "", spot_wait_h: float | None = None) -> World:
    """What is believed about capacity for this job; what is left out is assumed.

    churn: preemptions a node-hour as `0.1`, or the path of what `holdfast churn --json` printed.
    spot_wait_h: a median.
    """
    if spot_wait_h is not None:
        between(
            "Spot wait", spot_wait_h, 1e-3, MAX_WAIT_H, fix="hours above 0, as in --spot-wait 2h"
        )
    return World(
        prices=load(),
        churn=_churn(job.accelerator, churn),
        spot_wait_h=spot_wait_h,
    )


def _churn(accelerator: str, text: str) -> preemption_rate.Churn:
    if not text:
        return preemption_rate.prior(accelerator)
    # A file that is called like a number can still be given, as ./0.1.
    if not re.fullmatch(r"\d*\.?\d+(e-?\d+)?", text):
        return preemption_rate.read_measured(Path(text), accelerator)
    # Above 100 a node lives for half a minute: more likely a percentage was typed.
    between(
        "churn", float(text), 1e-6, 100, fix="preemptions a running node-hour, as in --churn 0.1"
    )
    return preemption_rate.fixed(float(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    world: World
    region: str
    options: list[Option]
    chosen: Option
    reason: str
    flip: Flip | None
    elsewhere: tuple[Estimate, ...]
    """The other allowed regions, cheapest first, by the estimate that ranks them."""


def answer(job: Job, world: World, region: str = "") -> Answer:
    """The options in the cheapest of the allowed regions, one of them chosen.

    region: where the data may be, as `us-central1`, `europe` or `europe,us-east4`; empty: anywhere.
    InputError for no such region, Unjudged where no option keeps the deadline.
    """
    # Where time is short, most of the hours are bought on demand, and Spot's price says little.
    tight = Deadline.of(job.hours, job.deadline_h) is Deadline.TIGHT
    names = allowed(world.prices.regions(job.accelerator), region)
    # By an estimate: simulating all regions would take most of the answer's time.
    ranked = break_even.estimates(job, world, names, with_spot=not tight)
    refused: list[Option] = []
    for estimate in ranked:
        rows = advice.options(job, world, estimate.region)
        if keeping(job, rows):
            break
        refused += rows
    else:
        rows = refused
    # Raises with every reason where no region keeps the deadline.
    chosen = choose(job, rows)
    flip = break_even.flip(job, world, chosen.region)
    return Answer(
        world=world,
        region=chosen.region,
        options=rows,
        chosen=chosen,
        flip=flip,
        reason=why(job, world, rows, chosen, flip),
        elsewhere=tuple(e for e in ranked if e.region != chosen.region and e.usd < math.inf),
    )


def allowed(regions: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Those that the text names, or that begin with a name of it up to a dash (`europe`)."""
    wanted = [each.strip().lower() for each in text.split(",")]
    found = tuple(
        r
        for r in regions
        if not text or any(r == each or r.startswith(f"{each}-") for each in wanted)
    )
    if (not all(wanted) and text) or not found:
        raise InputError(
            "--region",
            got=text,
            allowed=", ".join(regions),
            fix=(
                "as in --region us-central1, or --region europe,us-east4; `holdfast prices"
                " --refresh` fetches more"
            ),
        )
    return found


LATE_ALLOWED = 0.01
SAME_LATE = 0.002
# A more expensive option is taken when it costs this little more and its bad case ends this much
# sooner.
WORTH_USD = 0.05
WORTH_TIME = 0.10


def keeping(job: Job, options: list[Option]) -> list[Option]:
    """Those with a price and an end that keep the deadline in every scenario."""
    return [
        o
        for o in options
        if not o.refused and (math.isinf(job.deadline_h) or o.late <= LATE_ALLOWED)
    ]


def choose(job: Job, options: list[Option]) -> Option:
    """The cheapest that keeps the deadline; a little more money for a much earlier bad case."""
    kept = keeping(job, options)
    if not kept:
        late = (
            f"{o.policy}: " + (o.refused or f"{o.late:.0%} late in the worst scenario")
            for o in options
        )
        raise Unjudged("no option has a price, an end and keeps the deadline: " + "; ".join(late))
    least = min(kept, key=lambda o: o.mean_usd)
    equal = [o for o in kept if o.costs_as(least)]
    punctual = min(o.late for o in equal) if math.isfinite(job.deadline_h) else 0.0
    # The first of equals in the order of the table: simulated means decide nothing that another
    # sample would undo.
    cheapest = next(
        o for o in equal if math.isinf(job.deadline_h) or o.late <= punctual + SAME_LATE
    )
    most_usd = cheapest.mean_usd * (1 + WORTH_USD)
    soon_h = cheapest.finish_at(95) * (1 - WORTH_TIME)
    worth = [o for o in kept if o.mean_usd <= most_usd and o.finish_at(95) <= soon_h]
    return min(worth, key=lambda o: o.finish_at(95), default=cheapest)


def why(
    job: Job,
    world: World,
    options: list[Option],
    chosen: Option,
    flip: Flip | None,
) -> str:
    """One sentence with the numbers that decided."""
    turn = _turn(world, flip)
    demand = next(
        (o for o in options if o.placement is Placement.ON_DEMAND and not o.refused), None
    )
    saved = below(chosen.mean_usd, demand.mean_usd) if demand else "the cheapest with a price"
    match chosen.placement:
        case Placement.SPOT:
            return (
                f"Spot is {saved} with {chosen.usual.evictions:.1f} preemptions on average; {turn}."
            )
        case Placement.FLEX_START:
            late = f", {chosen.late:.1%} late" if math.isfinite(job.deadline_h) else ""
            return f"flex-start ({chosen.policy}) runs undisturbed, {saved}{late}; {turn}."
        case Placement.HYBRID:
            if math.isfinite(job.deadline_h):
                late = "on time if on-demand is granted"
            else:
                late = "it never waits"
            return f"{chosen.policy}: {saved}, {late}; {turn}."
        case Placement.ON_DEMAND:
            return f"no preemptible capacity keeps the deadline or saves money here; {turn}."


def below(usd: float, demand_usd: float) -> str:
    """`58% below on-demand`, and never `-0% below`."""
    # A rounded share of nothing would be printed with a sign.
    share = 1 - usd / demand_usd
    if abs(share) < 0.005:
        return "at the price of on-demand"
    return f"{abs(share):.0%} {'below' if share > 0 else 'above'} on-demand"


def _turn(world: World, flip: Flip | None) -> str:
    if flip is None:
        return "no break-even: a price is missing, or the gang is elastic"
    against = flip.against.value
    now = f"now {world.churn.per_hour:.2g}"
    if flip.churn_per_hour == 0.0:
        return f"Spot is no cheaper than {against} at any rate of preemption"
    if math.isinf(flip.churn_per_hour):
        return f"Spot is cheaper than {against} at any rate of preemption"
    return (
        f"Spot stops paying against {against} above {flip.churn_per_hour:.2g} preemptions a"
        f" node-hour ({now})"
    )
