"""What each capacity would cost for a job and when it would be finished: simulated, in each
scenario.

Every option appears, also one without a price or an answer: then with its reason.
"""

import math
from dataclasses import replace

import numpy as np

from holdfast.cost.prices import Quote
from holdfast.place import elastic, policies, preemption_rate
from holdfast.place.job import Job
from holdfast.place.options import Case, Option, World
from holdfast.place.policies import Policy
from holdfast.place.scenarios import flex_waits
from holdfast.place.simulation import side_by_side, simulate
from holdfast.place.simulation_arrays import Outcome, Paths, Runs, runs_of, take
from holdfast.vocabulary.capacity import Capacity, Placement
from holdfast.vocabulary.checkpoint_interval import daly
from holdfast.vocabulary.lifecycle import FLEX_MAX_RUN_S

RUNS = 1_000
FEWEST_RUNS = 250
# lives drawn for one simulation; long gangs get fewer runs instead of more memory
SAMPLES = 750_000
MAX_LIVES = 600
SLOWEST = 4.0
GAVE_UP = 0.01
# The cluster autoscaler removes nodes that nothing runs on after ten minutes, its default.
KEEP_H = 10 / 60
MICRO_BATCH_H = 10 / 3600
# Copies to a neighbour's memory hold a sharded gang for at most this share of its time: every 50 s
# if one takes 1 s.
COPYING = 0.02
COPIED_EVERY_H = 50 / 3600
LATE_EPS_H = 1e-6
FLEX_MAX_RUN_H = FLEX_MAX_RUN_S / 3600
_SPOT = (Capacity.SPOT,)
_ENDLESS = (
    f"over {SLOWEST:g} machine-hours for an hour of work: restarts or lost work take too long at"
    " this churn"
)


def groups(job: Job) -> int:
    """Equal groups of nodes, each lost as one: the smallest divisor of the nodes from their square
    root on.

    Reclaims take several nodes of a zone at once. In the record 4, 8 and 16 nodes were lost 1.5,
    2.2 and 2.9 times as often as one. Nodes that work from a queue do not stop each other.
    """
    nodes = 1 if job.batch else job.nodes
    return next(n for n in range(math.isqrt(nodes - 1) + 1, nodes + 1) if nodes % n == 0)


def job_churn(job: Job, node_churn: float) -> float:
    """Evictions of the job an hour."""
    return node_churn * groups(job)


def interval_h(job: Job, churn: float) -> float:
    """Work between checkpoints that costs least at this churn of the whole job."""
    if job.batch:
        return MICRO_BATCH_H
    return daly(job.checkpoint_h, 1 / churn) if job.resumable else math.inf


def kept(job: Job, churn: float) -> tuple[float, float]:
    """Work between the states that a loss goes back to, and for how long they hold the work, in
    hours. Of a sharded gang these are copies in memory, and the bucket's where a group of lost
    nodes takes two neighbours: in the mean.
    """
    upload_h = interval_h(job, churn)
    block_h = job.checkpoint_h if job.resumable and not job.batch else 0.0
    if not job.sharded or upload_h <= COPIED_EVERY_H:
        return upload_h, block_h
    both = neighbours_lost(job)
    mean_h = (1 - both) * COPIED_EVERY_H + both * upload_h
    return mean_h, mean_h * (COPYING + block_h / upload_h)


def neighbours_lost(job: Job) -> float:
    """Share of the losses of a sharded gang's group of nodes that take a shard with its copy: the
    bucket is read.
    """
    nodes = job.sharded
    lost = job.sharded // groups(job)
    if lost < 2:
        return 0.0
    # Of all choices of nodes on the ring, those without two that are next to each other.
    return 1 - nodes / (nodes - lost) * math.comb(nodes - lost, lost) / math.comb(nodes, lost)


def billed_wait_h(job: Job) -> float:
    """How long the other nodes of a gang are billed in each wait for a lost one."""
    return math.inf if job.sharded else KEEP_H


def quote(job: Job, world: World, region: str, capacity: Capacity) -> Quote | None:
    """All machines of the job, an hour; None without a price or where none is sold so."""
    machine = job.machine_for(capacity)
    found = world.prices.quote(machine, region, capacity) if machine else None
    if found and machine:
        return replace(found, usd=found.usd * job.gpus / machine.gpus)
    return None


def _spot_paths(job: Job, world: World) -> tuple[list[Paths], float]:
    """Of each scenario, and how many times shorter than the job the simulated one is.

    A year on hundreds of nodes is a hundred thousand evictions, each like the one before: a job
    that would outlast MAX_LIVES is simulated shorter, and hours, money and evictions multiplied.
    Means hold; the spread of one run is overstated. A job that cannot resume is never shortened.
    """
    rng = np.random.default_rng(0)
    units = groups(job)
    # A draw may be as good as 0, and a mean life divides by it.
    churn = np.maximum(world.churn.draw(rng, RUNS), 1e-6)
    needed = 20 + SLOWEST * job.hours * units * float(np.quantile(churn, 0.99))
    fold = max(1.0, needed / MAX_LIVES) if job.resumable or job.batch else 1.0
    per_path = int(min(needed, MAX_LIVES))
    count = int(np.clip(SAMPLES / max(per_path, 8 * units), FEWEST_RUNS, RUNS))
    # Late in a long run the nodes of a gang have all ages; a short run begins with new ones.
    spans = preemption_rate.gang_lives(
        rng,
        churn[:count],
        units=units,
        per_path=per_path,
        settled=fold > 1.0,
    )
    found: list[Paths] = []
    for scenario in world.scenarios(job):
        # The same lives and the same luck in each: only the scenario differs.
        waits = scenario.waits.draw(np.random.default_rng(1), count, per_path)
        # A shortened job still waits once for its first machines; the answer is multiplied
        # afterwards.
        waits[:, 0] /= fold
        found.append(preemption_rate.spot_paths(spans, waits))
    return found, fold


def options(job: Job, world: World, region: str) -> list[Option]:
    """One row a capacity, then the mixes; with a deadline also the queue with a way out."""
    rows = [_on_demand(job, world, region), _flex(job, world, region)]
    if math.isinf(job.deadline_h):
        rows += on_spot(job, world, region, policies.WAIT, policies.HYBRID)
    else:
        waits, mixed, *in_time = on_spot(
            job, world, region, policies.WAIT, policies.HYBRID, *policies.IN_TIME
        )
        rows += [
            waits,
            _cheapest(in_time),
            mixed,
            _flex(job, world, region, in_time=True),
        ]
    return [*rows, _elastic(job, world, region)] if job.elastic else rows


def _cheapest(in_time: list[Option]) -> Option:
    """Of the policies that watch the deadline; the first of equals, so that no sample decides."""
    least = min(in_time, key=lambda o: o.mean_usd if not o.refused else math.inf)
    return next(o for o in in_time if o is least or (not o.refused and o.costs_as(least)))


def on_spot(job: Job, world: World, region: str, *asked: Policy) -> list[Option]:
    """Spot under each of the policies."""
    each, fold = _spot_paths(job, world)
    edges_h = [paths.edges_h for paths in each]
    starts_up = [paths.starts_up for paths in each]
    paths = Paths(edges_h=np.concatenate(edges_h), starts_up=np.concatenate(starts_up))
    deadline_h = max(job.deadline_h / fold, job.hours / fold + job.restart_h)
    shorter = replace(job, hours=job.hours / fold, deadline_h=deadline_h)
    runs = runs_for(
        shorter,
        world,
        len(paths.edges_h),
        spot=Capacity.SPOT,
        region=region,
    )
    count = len(runs) // len(each)
    most = paths.edges_h.shape[1] // 2
    found: list[Option] = []
    for policy, outcome in zip(asked, side_by_side(runs, paths, asked), strict=True):
        waits = policy is policies.WAIT
        if waits:
            placement, needed = (Placement.SPOT, _SPOT)
        else:
            placement, needed = (Placement.HYBRID, (*_SPOT, Capacity.ON_DEMAND))
        blank = Option(
            placement=placement,
            policy=policy.shown,
            region=region,
        )
        cases = tuple(
            case_of(job, take(outcome, slice(at, at + count)), fold)
            for at in range(0, len(runs), count)
        )
        # As many evictions come in SLOWEST times the work only: the pace ends it, not the limit of
        # the simulation.
        endless = float(np.mean(outcome.evictions >= most)) > GAVE_UP
        found.append(
            replace(blank, refused=_ENDLESS)
            if endless
            else priced(job, world, blank, needed, cases)
        )
    return found


def _on_demand(job: Job, world: World, region: str) -> Option:
    hours = job.hours + job.restart_h
    price = quote(job, world, region, Capacity.ON_DEMAND)
    # A deadline that leaves no time for the work and one start is refused with the job.
    case = Case(
        usd=np.array([hours * price.usd if price else math.nan]),
        finish_h=np.array([hours]),
        late=0.0,
    )
    blank = Option(
        placement=Placement.ON_DEMAND,
        policy="on-demand only",
        region=region,
    )
    return priced(job, world, blank, (Capacity.ON_DEMAND,), (case,) * len(world.scenarios(job)))


def _flex(
    job: Job,
    world: World,
    region: str,
    *,
    in_time: bool = False,
) -> Option:
    if in_time:
        policy, shown = (policies.QUEUE, policies.QUEUE.shown)
    else:
        policy, shown = (policies.WAIT, "wait in the queue")
    blank = Option(
        placement=Placement.FLEX_START,
        policy=shown,
        region=region,
    )
    if not job.resumable and not job.batch and job.hours + job.restart_h > FLEX_MAX_RUN_H:
        return replace(
            blank,
            refused=(
                f"the job cannot resume and is longer than the {FLEX_MAX_RUN_H:.0f} h of a node"
            ),
        )
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
    case = case_of(job, simulate(runs, paths, policy))
    needed = (Capacity.FLEX_START, Capacity.ON_DEMAND) if in_time else (Capacity.FLEX_START,)
    return priced(job, world, blank, needed, (case,) * len(world.scenarios(job)))


def _elastic(job: Job, world: World, region: str) -> Option:
    name = f"elastic {job.min_nodes}..{job.max_nodes}, wait for Spot"
    blank = Option(placement=Placement.SPOT, policy=name, region=region)
    price = quote(job, world, region, Capacity.SPOT)
    outcomes, fold = elastic.outcomes(
        job,
        world,
        units=groups(job),
        spot_usd=price.usd if price else math.nan,
        # It stops less often than one of its machines is lost.
        interval_h=interval_h(job, world.churn.per_hour),
    )
    return priced(job, world, blank, _SPOT, tuple(case_of(job, each, fold) for each in outcomes))


def case_of(job: Job, outcome: Outcome, fold: float = 1.0) -> Case:
    finish_h = outcome.finish_h * fold
    evictions = float(np.mean(outcome.evictions)) * fold
    late = float(np.mean(finish_h > job.deadline_h + LATE_EPS_H))
    return Case(
        usd=outcome.usd * fold,
        finish_h=finish_h,
        late=late,
        evictions=evictions,
    )


def priced(
    job: Job,
    world: World,
    blank: Option,
    needed: tuple[Capacity, ...],
    cases: tuple[Case, ...],
) -> Option:
    """With its figures, or with the reason why it has none. needed: the interruptible or only
    capacity first.
    """
    why = next((text for each in needed if (text := _unsold(job, world, blank.region, each))), "")
    price = quote(job, world, blank.region, needed[0])
    if why or price is None:
        return replace(blank, refused=why)
    return replace(
        blank,
        usd_per_hour=price.usd,
        inferred=price.inferred,
        cases=cases,
    )


def _unsold(job: Job, world: World, region: str, capacity: Capacity) -> str:
    """Why this job cannot be bought so; empty where it can."""
    machine = job.machine_for(capacity)
    if machine is None:
        how = {Capacity.ON_DEMAND: "on demand", Capacity.SPOT: "on Spot"}.get(
            capacity, f"as {capacity.value}"
        )
        return (
            f"{job.machine.name} is not sold {how}, and no larger machine makes up {job.gpus} GPUs"
        )
    known = world.prices.quote(machine, region, capacity) is not None
    return "" if known else f"no {capacity.value} price of {machine.name} in {region}"


def runs_for(
    job: Job,
    world: World,
    count: int,
    *,
    spot: Capacity,
    region: str,
) -> Runs:
    """`count` runs of the job on this capacity."""
    price = {c: q.usd for c in Capacity if (q := quote(job, world, region, c))}
    undisturbed = spot is not Capacity.SPOT
    if undisturbed:
        interval, checkpoint = (0.0, 0.0)
    else:
        interval, checkpoint = kept(job, job_churn(job, world.churn.per_hour))
    return runs_of(
        count,
        work_h=job.hours,
        restart_h=job.restart_h,
        deadline_h=job.deadline_h,
        interval_h=interval,
        checkpoint_h=checkpoint,
        spot_usd=price.get(spot, math.nan),
        # Not sold, so not bought: 0 hours of an unknown price must not make the whole sum unknown.
        on_demand_usd=price.get(Capacity.ON_DEMAND, 0.0),
        idle_usd=(
            0.0
            if undisturbed or job.batch
            else price.get(spot, math.nan) * (job.nodes - 1) / job.nodes
        ),
        keep_h=billed_wait_h(job),
    )
