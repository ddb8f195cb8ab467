"""Simulates the cost and the finish time of a job on each capacity, in each scenario.

An option without a price or an answer appears too, with its reason.
"""

import math
from dataclasses import replace

import numpy as np

from holdfast.place import elastic, losses, policies, preemption_rate
from holdfast.place.job import Job
from holdfast.place.losses import FLEX_MAX_RUN_H
from holdfast.place.options import Case, Option, World, in_time
from holdfast.place.policies import Policy
from holdfast.place.scenarios import flex_waits
from holdfast.place.simulation import side_by_side, simulate
from holdfast.place.simulation_arrays import Outcome, Paths, Runs, make_runs, take
from holdfast.vocabulary.capacity import Capacity, Placement

RUNS = 1_000
FEWEST_RUNS = 250
# lives drawn for one simulation; long gangs get fewer runs instead of more memory
SAMPLES = 750_000
MAX_LIVES = 600
SLOWEST = 4.0
GAVE_UP = 0.01
LATE_EPS_H = 1e-6
_SPOT = (Capacity.SPOT,)
_ENDLESS = (
    f"over {SLOWEST:g} machine-hours for an hour of work: restarts or lost work take too long at"
    " this churn"
)


def _draw_spot_paths(job: Job, world: World) -> tuple[list[Paths], float]:
    """Return the paths of each scenario, and how many times shorter the simulated job is.

    A year on hundreds of nodes is a hundred thousand evictions, each like the one before: a job
    that would outlast MAX_LIVES is simulated shorter, and hours, money and evictions multiplied.
    Means hold; the spread of one run is overstated. A job that cannot resume is never shortened.
    """
    rng = np.random.default_rng(0)
    units = losses.count_groups(job)
    # A draw may be as good as 0, and a mean life divides by it.
    churn = np.maximum(world.churn.draw(rng, RUNS), 1e-6)
    high_churn = float(np.quantile(churn, 0.99))
    lives = 20 + SLOWEST * job.hours * units * high_churn
    fold = 1.0
    if job.resumable or job.batch:
        fold = max(1.0, lives / MAX_LIVES)
    per_path = int(min(lives, MAX_LIVES))
    affordable_runs = SAMPLES / max(per_path, 8 * units)
    count = int(np.clip(affordable_runs, FEWEST_RUNS, RUNS))
    # Late in a long run the nodes of a gang have all ages; a short run begins with new ones.
    spans = preemption_rate.gang_lives(
        rng,
        churn[:count],
        units=units,
        per_path=per_path,
        settled=fold > 1.0,
    )
    scenario_paths: list[Paths] = []
    for scenario in world.scenarios(job):
        # The same lives and the same luck in each: only the scenario differs.
        waits = scenario.waits.draw(np.random.default_rng(1), count, per_path)
        # A shortened job still waits once for its first machines; the answer is multiplied
        # afterwards.
        waits[:, 0] /= fold
        scenario_paths.append(preemption_rate.spot_paths(spans, waits))
    return scenario_paths, fold


def options(job: Job, world: World, region: str) -> list[Option]:
    """Return an option for each capacity, then the mixes.

    With a deadline they include the queue with a way out.
    """
    rows = [_on_demand(job, world, region), _flex(job, world, region)]
    if math.isinf(job.deadline_h):
        rows += on_spot(job, world, region, policies.WAIT, policies.HYBRID)
    else:
        spot, hybrid, *in_time = on_spot(
            job, world, region, policies.WAIT, policies.HYBRID, *policies.IN_TIME
        )
        rows += [
            spot,
            _cheapest(in_time),
            hybrid,
            _flex(job, world, region, in_time=True),
        ]
    if job.elastic:
        rows.append(_elastic(job, world, region))
    return [_compare(job, row) for row in rows]


def _compare(job: Job, option: Option) -> Option:
    """Return the option, marked if no job of the platform runs that way."""
    if not job.offers or option.refused or option.unavailable:
        return option
    reason = ""
    spot_only = option.placement is Placement.SPOT and not option.policy.startswith("elastic")
    if job.elastic and spot_only:
        reason = "for comparison: the job is an elastic gang"
    elif option.policy == policies.HYBRID.shown:
        reason = "for comparison: no job is moved at once and back"
    elif in_time(option):
        reason = job.offers[_find_cheaper(option)].bound
    return replace(option, unavailable=reason)


def _find_cheaper(option: Option) -> Capacity:
    """Return the capacity that an option leaves in time."""
    if option.placement is Placement.FLEX_START:
        return Capacity.FLEX_START
    return Capacity.SPOT


def _cheapest(in_time: list[Option]) -> Option:
    """Return the cheapest policy that watches the deadline.

    The first of equals is taken, so that no sample decides.
    """
    possible = [option for option in in_time if not option.refused]
    if not possible:
        return in_time[0]
    cheapest = min(possible, key=lambda option: option.mean_usd)
    for option in possible:
        if option.costs_as(cheapest):
            return option
    return cheapest


def on_spot(job: Job, world: World, region: str, *spot_policies: Policy) -> list[Option]:
    """Return an option on Spot for each of the policies."""
    scenario_paths, fold = _draw_spot_paths(job, world)
    edges_h = [paths.edges_h for paths in scenario_paths]
    starts_up = [paths.starts_up for paths in scenario_paths]
    paths = Paths(edges_h=np.concatenate(edges_h), starts_up=np.concatenate(starts_up))
    work_h = job.hours / fold
    deadline_h = max(job.deadline_h / fold, work_h + job.restart_h)
    shorter = replace(job, hours=work_h, deadline_h=deadline_h)
    runs = runs_for(
        shorter,
        world,
        len(paths.edges_h),
        spot=Capacity.SPOT,
        region=region,
    )
    outcomes = side_by_side(runs, paths, spot_policies)
    count = len(runs) // len(scenario_paths)
    starts = range(0, len(runs), count)
    max_evictions = paths.edges_h.shape[1] // 2
    rows: list[Option] = []
    for policy, outcome in zip(spot_policies, outcomes, strict=True):
        option = Option(
            placement=Placement.SPOT if policy is policies.WAIT else Placement.HYBRID,
            policy=policy.shown,
            region=region,
        )
        # Only a run that takes SLOWEST times its work has that many evictions: it is given up for
        # its pace, not for the limit of the simulation.
        if float(np.mean(outcome.evictions >= max_evictions)) > GAVE_UP:
            rows.append(replace(option, refused=_ENDLESS))
            continue
        slices = [take(outcome, slice(start, start + count)) for start in starts]
        cases = tuple(make_case(job, part, fold) for part in slices)
        capacities = _SPOT if policy is policies.WAIT else (*_SPOT, Capacity.ON_DEMAND)
        rows.append(add_price(job, world, option, capacities, cases))
    return rows


def _on_demand(job: Job, world: World, region: str) -> Option:
    hours = job.hours + job.restart_h
    price = world.quote(job, region, Capacity.ON_DEMAND)
    # A deadline that leaves no time for the work and one start is refused with the job.
    case = Case(
        usd=np.array([hours * price.usd if price else math.nan]),
        finish_h=np.array([hours]),
        late=0.0,
    )
    option = Option(
        placement=Placement.ON_DEMAND,
        policy="on-demand only",
        region=region,
    )
    cases = (case,) * len(world.scenarios(job))
    return add_price(job, world, option, (Capacity.ON_DEMAND,), cases)


def _flex(
    job: Job,
    world: World,
    region: str,
    *,
    in_time: bool = False,
) -> Option:
    policy = policies.QUEUE if in_time else policies.WAIT
    option = Option(
        placement=Placement.FLEX_START,
        policy=policy.shown if in_time else "wait in the queue",
        region=region,
    )
    if job.sharded:
        reason = "a lost node of a sharded gang comes back after hours in a queue, or never"
        return replace(option, refused=reason)
    runs_in_one_piece = not job.resumable and not job.batch
    if runs_in_one_piece and job.hours + job.restart_h > FLEX_MAX_RUN_H:
        reason = f"the job cannot resume and is longer than the {FLEX_MAX_RUN_H:.0f} h of a node"
        return replace(option, refused=reason)
    runs = runs_for(
        job,
        world,
        RUNS,
        spot=Capacity.FLEX_START,
        region=region,
    )
    rounds = math.ceil(job.hours / (FLEX_MAX_RUN_H - job.restart_h)) + 2
    rng = np.random.default_rng(0)
    paths = preemption_rate.flex_paths(
        rng,
        RUNS,
        max_run_h=FLEX_MAX_RUN_H,
        rounds=rounds,
        waits=flex_waits(),
    )
    case = make_case(job, simulate(runs, paths, policy))
    cases = (case,) * len(world.scenarios(job))
    capacities = (Capacity.FLEX_START, Capacity.ON_DEMAND) if in_time else (Capacity.FLEX_START,)
    return add_price(job, world, option, capacities, cases)


def _elastic(job: Job, world: World, region: str) -> Option:
    option = Option(
        placement=Placement.SPOT,
        policy=f"elastic {job.min_nodes}..{job.max_nodes}, wait for Spot",
        region=region,
    )
    price = world.quote(job, region, Capacity.SPOT)
    # It stops less often than one of its machines is lost.
    upload_h = losses.find_interval(job, world.churn.per_hour)
    outcomes, fold = elastic.outcomes(
        job,
        world,
        units=losses.count_groups(job),
        spot_usd=price.usd if price else math.nan,
        interval_h=upload_h,
        sharding=_describe_sharding(job, upload_h),
    )
    cases = tuple(make_case(job, outcome, fold) for outcome in outcomes)
    return add_price(job, world, option, _SPOT, cases)


def _describe_sharding(job: Job, upload_h: float) -> elastic.Sharding | None:
    """Return what each loss costs a gang of a sharded state; None if each node has all of it.

    Nodes that have a notice hand their shards over, and no step is lost. Without one a loss costs
    half an interval between copies on average, or a start from the bucket.
    """
    if not job.sharded:
        return None
    share = losses.neighbors_lost(job)
    from_memory_h = min(losses.COPIED_EVERY_H, upload_h) / 2
    from_bucket_h = job.restart_h + upload_h / 2
    unnoticed_h = (1 - share) * from_memory_h + share * from_bucket_h
    return elastic.Sharding(loss_h=losses.UNNOTICED * unnoticed_h, copying=losses.COPYING)


def make_case(job: Job, outcome: Outcome, fold: float = 1.0) -> Case:
    """Sum up the outcome of a job that was simulated `fold` times shorter."""
    finish_h = outcome.finish_h * fold
    late = finish_h > job.deadline_h + LATE_EPS_H
    return Case(
        usd=outcome.usd * fold,
        finish_h=finish_h,
        late=float(np.mean(late)),
        evictions=float(np.mean(outcome.evictions)) * fold,
    )


def add_price(
    job: Job,
    world: World,
    option: Option,
    capacities: tuple[Capacity, ...],
    cases: tuple[Case, ...],
) -> Option:
    """Return the option with its price and cases, or with the reason why it has none.

    capacities: all that the option uses, the interruptible or only one first.
    """
    for capacity in capacities:
        reason = _explain_unsold(job, world, option.region, capacity)
        if reason:
            return replace(option, refused=reason)
    price = world.quote(job, option.region, capacities[0])
    if price is None:
        return replace(option, refused="")
    unavailable = ""
    if job.offers:
        for capacity in capacities:
            unavailable = unavailable or job.offers[capacity].refused
    return replace(
        option,
        usd_per_hour=price.usd,
        inferred=price.inferred,
        cases=cases,
        unavailable=unavailable,
    )


def _explain_unsold(job: Job, world: World, region: str, capacity: Capacity) -> str:
    """Return why the job cannot be bought on this capacity, or an empty text if it can."""
    machine = job.machine_for(capacity)
    if machine is None:
        phrases = {Capacity.ON_DEMAND: "on demand", Capacity.SPOT: "on Spot"}
        phrase = phrases.get(capacity, f"as {capacity.value}")
        return (
            f"{job.machine.name} is not sold {phrase}, and no larger machine makes up"
            f" {job.gpus} GPUs"
        )
    if world.quote(job, region, capacity) is None:
        return f"no {capacity.value} price of {machine.name} in {region}"
    return ""


def runs_for(
    job: Job,
    world: World,
    count: int,
    *,
    spot: Capacity,
    region: str,
) -> Runs:
    """Return `count` runs of the job, with `spot` as the cheaper capacity."""
    prices: dict[Capacity, float] = {}
    for capacity in Capacity:
        price = world.quote(job, region, capacity)
        if price:
            prices[capacity] = price.usd
    spot_usd = prices.get(spot, math.nan)
    interval = 0.0
    checkpoint = 0.0
    idle_usd = 0.0
    if spot is Capacity.SPOT:
        interval, checkpoint = losses.find_save_interval(
            job, losses.job_churn(job, world.churn.per_hour)
        )
        if not job.batch:
            idle_usd = spot_usd * (job.nodes - 1) / job.nodes
    return make_runs(
        count,
        work_h=job.hours,
        restart_h=job.restart_h,
        deadline_h=job.deadline_h,
        interval_h=interval,
        checkpoint_h=checkpoint,
        spot_usd=spot_usd,
        # Not sold, so not bought: 0 hours of an unknown price must not make the whole sum unknown.
        on_demand_usd=prices.get(Capacity.ON_DEMAND, 0.0),
        idle_usd=idle_usd,
        keep_h=losses.find_billed_wait(job),
    )
