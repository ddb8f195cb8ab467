"""Answers the question of a user: takes beliefs and regions, and recommends one option."""

import math
import re
from dataclasses import dataclass, replace
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
LATE_ALLOWED = 0.01
SAME_LATE = 0.002
# A more expensive option is taken when it costs this little more and its bad case ends this much
# sooner.
WORTH_USD = 0.05
WORTH_TIME = 0.10
# The price of an hour later for a job without a deadline, as a share of its on-demand price.
# Why: infra/decisions/0124.
LATER_SHARE = 0.10


def make_world(
    job: Job,
    churn: str = "",
    spot_wait_h: float | None = None,
    zones: tuple[str, ...] = (),
) -> World:
    """Return the beliefs about capacity for this job; what is left out is assumed.

    churn: preemptions a node-hour as `0.1`, or the path of what `place churn --json` prints.
    spot_wait_h: a median. zones: those in which the job may start.
    """
    if spot_wait_h is not None:
        between(
            "Spot wait", spot_wait_h, 1e-3, MAX_WAIT_H, fix="hours above 0, as in --spot-wait 2h"
        )
    return World(
        prices=load(),
        churn=_choose_churn(job.accelerator, churn),
        spot_wait_h=spot_wait_h,
        zones=zones,
    )


def _choose_churn(accelerator: str, text: str) -> preemption_rate.Churn:
    if not text:
        return preemption_rate.prior(accelerator)
    # A file that is called like a number can still be given, as ./0.1.
    if not re.fullmatch(r"\d*\.?\d+(e-?\d+)?", text):
        return preemption_rate.load_measurements(Path(text), accelerator)
    # Above 100 a node lives for half a minute: more likely a percentage was typed.
    between(
        "churn", float(text), 1e-6, 100, fix="preemptions a running node-hour, as in --churn 0.1"
    )
    return preemption_rate.assume(float(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    world: World
    region: str
    options: list[Option]
    recommended: Option
    reason: str
    flip: Flip | None
    elsewhere: tuple[Estimate, ...]
    """The other allowed regions, cheapest first, by the estimate that ranks them."""


def answer(job: Job, world: World, region: str = "") -> Answer:
    """Return the options in the cheapest of the allowed regions, with one recommended.

    region: where the data may be, as `us-central1`, `europe` or `europe,us-east4`; empty: anywhere.
    Raises InputError if there is no such region, and Unjudged if no option keeps the deadline.
    """
    if job.offers:
        # A platform has one region, in which its pools are.
        return answer_in(job, world, region)
    # Where time is short, most of the hours are bought on demand, and Spot's price says little.
    tight = Deadline.of(job.hours, job.deadline_h) is Deadline.TIGHT
    names = select_regions(world.prices.regions(job.accelerator), region)
    # By an estimate: simulating all regions would take most of the answer's time.
    ranked = break_even.estimates(job, world, names, with_spot=not tight)
    late_options: list[Option] = []
    for estimate in ranked:
        local = replace(world, zones=(estimate.region,))
        options = advice.options(job, local, estimate.region)
        if select_in_time(job, options):
            return _make_answer(job, local, options, _list_others(ranked, estimate.region))
        late_options += options
    raise _explain_none(job, late_options)


def _list_others(ranked: list[Estimate], region: str) -> tuple[Estimate, ...]:
    estimates: list[Estimate] = []
    for estimate in ranked:
        if estimate.region != region and estimate.usd < math.inf:
            estimates.append(estimate)
    return tuple(estimates)


def answer_in(job: Job, world: World, region: str) -> Answer:
    """Return the options of a platform in its region, with one recommended.

    Raises Unjudged if no option can be taken and keeps the deadline.
    """
    return _make_answer(job, world, advice.options(job, world, region), ())


def _make_answer(
    job: Job,
    world: World,
    options: list[Option],
    elsewhere: tuple[Estimate, ...],
) -> Answer:
    recommended = choose(job, options)
    flip = break_even.flip(job, world, recommended.region)
    return Answer(
        world=world,
        region=recommended.region,
        options=options,
        recommended=recommended,
        flip=flip,
        reason=explain(job, world, options, recommended, flip),
        elsewhere=elsewhere,
    )


def select_regions(regions: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Return the regions that the text names, in full or up to a dash (`europe`).

    Raises InputError if a name is empty, or if no region matches.
    """
    if not text and regions:
        return regions
    names = [name.strip().lower() for name in text.split(",")]
    matches = tuple(region for region in regions if _matches(region, names))
    if not all(names) or not matches:
        raise InputError(
            "--anywhere",
            got=text,
            allowed=", ".join(regions),
            fix=(
                "as in --anywhere all, or --anywhere europe,us-east4; `holdfast place prices"
                " --refresh` fetches more"
            ),
        )
    return matches


def _matches(region: str, names: list[str]) -> bool:
    return any(region == name or region.startswith(f"{name}-") for name in names)


def select_in_time(job: Job, options: list[Option]) -> list[Option]:
    """Return the options with a price that can be taken and keep the deadline in every scenario.

    Their bad end in the middle scenario also comes before the job is stopped.
    """
    priced: list[Option] = []
    for option in options:
        if option.refused or option.unavailable:
            continue
        if option.finish_at(95) < job.limit_h:
            priced.append(option)
    if math.isinf(job.deadline_h):
        return priced
    return [option for option in priced if option.late <= LATE_ALLOWED]


def choose(job: Job, options: list[Option]) -> Option:
    """Return the cheapest option that keeps the deadline.

    An option that costs a little more is taken if its bad case ends much earlier. Raises Unjudged
    if no option keeps the deadline.
    """
    candidates = select_in_time(job, options)
    if not candidates:
        raise _explain_none(job, options)
    cheapest = _find_cheapest(job, candidates, later_usd(job, options))
    max_usd = cheapest.mean_usd * (1 + WORTH_USD)
    early_h = cheapest.finish_at(95) * (1 - WORTH_TIME)
    early: list[Option] = []
    for option in candidates:
        if option.mean_usd <= max_usd and option.finish_at(95) <= early_h:
            early.append(option)
    return min(early, key=lambda option: option.finish_at(95), default=cheapest)


def describe_failure(job: Job, option: Option) -> str:
    """Return why an option is not one of those to choose from."""
    reason = option.refused or option.unavailable
    if reason:
        return reason
    if option.finish_at(95) >= job.limit_h:
        return f"done after {option.finish_at(95):,.1f} h (p95), stopped after {job.limit_h:g} h"
    return f"{option.late:.0%} late in the worst scenario"


def later_usd(job: Job, options: list[Option]) -> float:
    """Return the price of one hour later, for all machines of the job; 0 with a deadline.

    Where on-demand has no price, the most expensive capacity stands for it.
    """
    if math.isfinite(job.deadline_h):
        return 0.0
    prices = [option.usd_per_hour for option in options if not option.refused]
    for option in options:
        if option.placement is Placement.ON_DEMAND and not option.refused:
            prices = [option.usd_per_hour]
    return LATER_SHARE * max(filter(math.isfinite, prices), default=0.0)


def _explain_none(job: Job, options: list[Option]) -> Unjudged:
    """Return the error of a job without an option, with the reason of each."""
    reasons = [f"{option.policy}: {describe_failure(job, option)}" for option in options]
    return Unjudged("no option has a price, an end and keeps the deadline: " + "; ".join(reasons))


def _find_cheapest(job: Job, candidates: list[Option], hour_usd: float) -> Option:
    """Return the cheapest option, with its hours priced; the first of equals in the table's order.

    Simulated means decide nothing that another sample would undo.
    """
    cheapest = min(candidates, key=lambda option: option.usd_with_time(hour_usd))
    equals = [option for option in candidates if option.costs_as(cheapest, hour_usd)]
    if math.isinf(job.deadline_h):
        return equals[0]
    most_punctual = min(option.late for option in equals)
    return next(option for option in equals if option.late <= most_punctual + SAME_LATE)


def explain(
    job: Job,
    world: World,
    options: list[Option],
    recommended: Option,
    flip: Flip | None,
) -> str:
    """Return one sentence with the numbers that decided."""
    turn = _describe_flip(world, flip)
    saving = _describe_saving(options, recommended)
    has_deadline = math.isfinite(job.deadline_h)
    match recommended.placement:
        case Placement.SPOT:
            evictions = recommended.usual.evictions
            return f"Spot is {saving} with {evictions:.1f} preemptions on average; {turn}."
        case Placement.FLEX_START:
            late = f", {recommended.late:.1%} late" if has_deadline else ""
            return f"flex-start ({recommended.policy}) runs undisturbed, {saving}{late}; {turn}."
        case Placement.HYBRID:
            late = "on time if on-demand is granted" if has_deadline else "it never waits"
            return f"{recommended.policy}: {saving}, {late}; {turn}."
        case Placement.ON_DEMAND:
            reason = "keeps the deadline" if has_deadline else "is worth its wait"
            return f"no preemptible capacity {reason} or saves money here; {turn}."


def _describe_saving(options: list[Option], recommended: Option) -> str:
    for option in options:
        if option.placement is Placement.ON_DEMAND and not option.refused:
            return below(recommended.mean_usd, option.mean_usd)
    return "the cheapest with a price"


def below(usd: float, demand_usd: float) -> str:
    """Return `58% below on-demand`, and never `-0% below`."""
    # A rounded share of nothing would be printed with a sign.
    share = 1 - usd / demand_usd
    if abs(share) < 0.005:
        return "at the price of on-demand"
    return f"{abs(share):.0%} {'below' if share > 0 else 'above'} on-demand"


def _describe_flip(world: World, flip: Flip | None) -> str:
    if flip is None:
        return "no break-even: a price is missing, or the gang is elastic"
    against = flip.against.value
    if flip.churn_per_hour == 0.0:
        return f"Spot is no cheaper than {against} at any rate of preemption"
    if math.isinf(flip.churn_per_hour):
        return f"Spot is cheaper than {against} at any rate of preemption"
    return (
        f"Spot stops paying against {against} above {flip.churn_per_hour:.2g} preemptions a"
        f" node-hour (now {world.churn.per_hour:.2g})"
    )
