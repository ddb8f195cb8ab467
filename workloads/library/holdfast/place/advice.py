"""What each capacity would cost for a job and when it would be finished: simulated, as distributions.

Every option appears, also one that has no price or no answer: then with its reason. Money and time stand side by
side, because waiting is cheap in money and dear in time.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from holdfast.contract.capacity import Capacity, Placement
from holdfast.contract.errors import InputError
from holdfast.contract.lifecycle import FLEX_MAX_RUN_S
from holdfast.place import forms, option_names, policies, spells
from holdfast.place.belief import Option, World
from holdfast.place.job import Job
from holdfast.place.outages import Outages
from holdfast.place.policies import Policy
from holdfast.place.prices import Quote
from holdfast.place.runs import Floats, Ints, Outcome, Paths, Runs, runs_of
from holdfast.place.simulate import side_by_side, simulate

RUNS, FEWEST_RUNS = 2_000, 250
SAMPLES = 1_500_000  # lifetimes drawn for one simulation; long gangs get fewer runs instead of more memory
MAX_SPELLS = 600
SLOWEST = 4.0
GAVE_UP = 0.01
# The cluster autoscaler removes nodes that nothing runs on after ten minutes, its default.
KEEP_H = 10 / 60
MICRO_BATCH_H = 10 / 3600
LATE_EPS_H = 1e-6
FLEX_MAX_RUN_H = FLEX_MAX_RUN_S / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One job in one region: the capacity that comes and goes, drawn once for all policies."""

    job: Job
    world: World
    region: str
    spot: Paths
    fold: float = 1.0
    """How many times shorter than the job the simulated one is."""

    @classmethod
    def of(cls, job: Job, world: World, region: str) -> "Scene":
        if world.recorded is not None:
            return cls(job=job, world=world, region=region, spot=world.recorded.paths)
        fold, paths = _spot_paths(job, world, world.waits(job, region))
        return cls(job=job, world=world, region=region, spot=paths, fold=fold)


def units(job: Job, together: float) -> int:
    """Groups of nodes that are lost independently of each other. Nodes that work from a queue do not stop each other."""
    return 1 if job.batch else max(1, round(job.nodes / max(1.0, together)))


def job_churn(job: Job, node_churn: float, together: float) -> float:
    """Evictions of the job an hour."""
    if job.batch:
        return node_churn
    return forms.gang_churn(nodes=job.nodes, node_churn=node_churn, together=together)


def interval_h(job: Job, churn: float) -> float:
    """Work between checkpoints that costs least at this churn of the whole job."""
    if job.batch:
        return MICRO_BATCH_H
    return forms.daly(job.checkpoint_h, churn) if job.resumable else math.inf


def quote(job: Job, world: World, region: str, capacity: Capacity) -> Quote | None:
    """All machines of the job, an hour; None without a price or where none is sold so."""
    machine = job.machine_for(capacity)
    found = world.prices.quote(machine, region, capacity) if machine else None
    return replace(found, usd=found.usd * job.gpus / machine.gpus) if found and machine else None


def options(job: Job, world: World, region: str) -> list[Option]:
    """One row a capacity, then the mixes; with a deadline also the queue with a way out."""
    if region not in world.prices.regions(job.accelerator):
        raise InputError(
            f"no prices for {job.accelerator}",
            got=region,
            allowed=", ".join(world.prices.regions(job.accelerator)),
            fix="take one of these, or fetch more with `holdfast prices refresh`",
        )
    scene = Scene.of(job, world, region)
    free = world.across_zones(job, region)
    zones = _any_zone(Scene.of(job, free, region)) if free else []
    whole = [_demand(job, world, region), _flex(job, world, region)]
    if math.isinf(job.deadline_h):
        return [*whole, *under_each(scene, policies.WAIT, policies.HYBRID), *zones]
    waits, mixed, *in_time = under_each(scene, policies.WAIT, policies.HYBRID, *policies.IN_TIME)
    return [*whole, waits, _cheapest(in_time), mixed, _flex(job, world, region, in_time=True), *zones]


def _any_zone(scene: Scene) -> list[Option]:
    """Spot in whichever zone of the region has it. A ComputeClass does so by itself, as long as nothing pins a zone."""
    dated = math.isfinite(scene.job.deadline_h)
    waits, *in_time = under_each(scene, policies.WAIT, *(policies.IN_TIME if dated else ()))
    rows = [waits, _cheapest(in_time)] if dated else [waits]
    return [replace(row, policy=row.policy + option_names.ANY_ZONE) for row in rows]


def _cheapest(in_time: list[Option]) -> Option:
    """Of the policies that watch the deadline; the first of equals, so that no seed decides."""
    least = min(in_time, key=lambda o: (bool(o.refused), o.mean_usd if not o.refused else 0.0))
    return next(o for o in in_time if o is least or (not o.refused and o.costs_as(least)))


def _demand(job: Job, world: World, region: str) -> Option:
    runs = runs_for(job, world, 1, spot=Capacity.ON_DEMAND, region=region)
    blank = Option(placement=Placement.ON_DEMAND, policy="on-demand only", region=region)
    never = Paths(edges_h=np.full((1, 1), np.inf), starts_up=np.zeros(1, bool))
    return _answer(
        job,
        world,
        blank,
        Capacity.ON_DEMAND,
        runs,
        never,
        policies.ON_DEMAND_ONLY,
        simulate(runs, never, policies.ON_DEMAND_ONLY),
    )


def _flex(job: Job, world: World, region: str, *, in_time: bool = False) -> Option:
    name = option_names.QUEUE_IN_TIME if in_time else option_names.QUEUE
    by = policies.COMPUTE_CLASS if in_time else policies.ONE_CAPACITY
    blank = Option(placement=Placement.FLEX_START, policy=name, region=region, carried_out_by=by)
    policy = policies.QUEUE if in_time else policies.WAIT
    if not job.resumable and not job.batch and job.hours + job.restart_h > FLEX_MAX_RUN_H:
        return _refuse(blank, f"the job cannot resume and is longer than the {FLEX_MAX_RUN_H:.0f} h of a node")
    if job.restart_h >= FLEX_MAX_RUN_H:
        return _refuse(blank, f"a restart takes longer than the {FLEX_MAX_RUN_H:.0f} h of a node")
    runs = runs_for(job, world, RUNS, spot=Capacity.FLEX_START, region=region)
    rounds = math.ceil(job.hours / (FLEX_MAX_RUN_H - job.restart_h)) + 2
    rng = np.random.default_rng(world.seed)
    paths = spells.flex_paths(rng, RUNS, max_run_h=FLEX_MAX_RUN_H, rounds=rounds, waits=world.flex_waits)
    return _answer(job, world, blank, Capacity.FLEX_START, runs, paths, policy, simulate(runs, paths, policy))


def under(scene: Scene, policy: Policy) -> Option:
    """Spot under one policy."""
    return under_each(scene, policy)[0]


def under_each(scene: Scene, *asked: Policy) -> list[Option]:
    """Spot under each of the policies."""
    job, world, fold = scene.job, scene.world, scene.fold
    count = RUNS if world.recorded is not None else len(scene.spot.edges_h)
    deadline_h = max(job.deadline_h / fold, job.hours / fold + job.restart_h)
    shorter = replace(job, hours=job.hours / fold, deadline_h=deadline_h)
    runs = runs_for(shorter, world, count, spot=Capacity.SPOT, region=scene.region)
    return [
        _answer(job, world, _blank(scene, policy), Capacity.SPOT, runs, scene.spot, policy, outcome, fold)
        for policy, outcome in zip(asked, side_by_side(runs, scene.spot, asked), strict=True)
    ]


def _blank(scene: Scene, policy: Policy) -> Option:
    return Option(
        placement=Placement.SPOT if policy is policies.WAIT else Placement.HYBRID,
        policy=option_names.on_spot(policy),
        region=scene.region,
        carried_out_by=policy.carried_out_by,
    )


def _answer(
    job: Job, world: World, blank: Option, capacity: Capacity, runs: Runs, paths: Paths, policy: Policy,
    outcome: Outcome, fold: float = 1.0,
) -> Option:  # fmt: skip
    for needed in (capacity,) if policy is policies.WAIT else (capacity, Capacity.ON_DEMAND):
        if missing := unsold(job, world, blank.region, needed):
            return _refuse(blank, missing)
    price = quote(job, world, blank.region, capacity)
    assert price is not None
    if stuck := _stuck(outcome, paths):
        return _refuse(blank, stuck)
    finish_h = outcome.finish_h * fold
    return replace(
        blank,
        usd_per_hour=price.usd,
        usd=outcome.usd * fold,
        finish_h=finish_h,
        lateness=_lateness(job, world, runs, paths, outcome, fold),
        refusal=world.on_demand_refused,
        recording=None if world.recorded is None or len(runs) == 1 or capacity is not Capacity.SPOT else runs.path,
        evictions=float(np.mean(outcome.evictions)) * fold,
        inferred=price.inferred,
    )


def _lateness(job: Job, world: World, runs: Runs, paths: Paths, outcome: Outcome, fold: float) -> Floats:
    """Where on-demand is refused, a run that wanted it waits to its end for what it had before."""
    late = outcome.finish_h * fold > job.deadline_h + LATE_EPS_H
    if not world.on_demand_refused:
        return late.astype(np.float64)
    waited = simulate(runs, paths, policies.WAIT).finish_h * fold > job.deadline_h + LATE_EPS_H
    return np.where(outcome.on_demand_h > 0.0, late + world.on_demand_refused * (1.0 * waited - late), late)


def unsold(job: Job, world: World, region: str, capacity: Capacity) -> str:
    """Why this job cannot be bought so; empty where it can."""
    if job.machine_for(capacity) is None:
        return f"{job.machine.name} is not sold {_how(capacity)}, and no larger machine makes up {job.gpus} GPUs"
    machine = job.machine_for(capacity)
    known = machine is not None and world.prices.quote(machine, region, capacity) is not None
    return "" if known or machine is None else f"no {capacity.value} price of {machine.name} in {region}"


def _how(capacity: Capacity) -> str:
    return {Capacity.ON_DEMAND: "on demand", Capacity.SPOT: "on Spot"}.get(capacity, f"as {capacity.value}")


def _stuck(outcome: Outcome, paths: Paths) -> str:
    if np.any(np.isinf(outcome.finish_h)):
        return "in the recorded traces some runs never finish"
    most = paths.edges_h.shape[1] // 2
    own = most > 0 and len(paths.edges_h) == len(outcome.usd) and not paths.planned
    # As many evictions come in SLOWEST times the work only; so it is the pace that ends it, not a cap of ours.
    if own and float(np.mean(outcome.evictions >= most)) > GAVE_UP:
        return f"over {SLOWEST:g} machine-hours for an hour of work: the restart or the lost work is too long for this churn"
    return ""


def _refuse(blank: Option, why: str) -> Option:
    return replace(blank, refused=why)


def runs_for(job: Job, world: World, count: int, *, spot: Capacity, region: str) -> Runs:
    """`count` runs of the job on this capacity; of recorded Spot each from its place on one of the traces."""
    churn = job_churn(job, world.churn.per_hour, world.together)
    price = {c: q.usd for c in Capacity if (q := quote(job, world, region, c))}
    undisturbed = spot is not Capacity.SPOT
    path, offset_h = (None, None) if undisturbed else _starts(world, count)
    return runs_of(
        count,
        work_h=job.hours,
        restart_h=job.restart_h,
        deadline_h=job.deadline_h,
        interval_h=0.0 if undisturbed else interval_h(job, churn),
        checkpoint_h=job.checkpoint_h if job.resumable and not job.batch and not undisturbed else 0.0,
        spot_usd=price.get(spot, math.nan),
        # Not sold: nobody buys it then, and 0 hours of an unknown price must not make the whole sum unknown.
        on_demand_usd=price.get(Capacity.ON_DEMAND, 0.0),
        idle_usd=0.0 if undisturbed or job.batch else price.get(spot, math.nan) * (job.nodes - 1) / job.nodes,
        keep_h=KEEP_H,
        path=path,
        offset_h=offset_h,
    )


def _starts(world: World, count: int) -> tuple[Ints, Floats] | tuple[None, None]:
    if world.recorded is None:
        return None, None
    rng = np.random.default_rng(world.seed + 1)
    path = rng.integers(len(world.recorded.hours), size=count)
    return path, rng.uniform(0.0, world.recorded.hours[path])


@lru_cache(maxsize=4)
def _spot_paths(job: Job, world: World, waits: Outages) -> tuple[float, Paths]:
    """How many times shorter the simulated job is, and its paths.

    A year on hundreds of nodes is a hundred thousand evictions, each like the one before: so a job that would
    outlast MAX_SPELLS is simulated so many times shorter, and hours, money and evictions multiplied. Means
    hold; the spread of one run is overstated. A job that cannot resume is never shortened.
    """
    rng = np.random.default_rng(world.seed)
    groups = units(job, world.together)
    per_unit = job_churn(job, 1.0, world.together) / groups
    churn = np.maximum(per_unit * world.churn.draw(rng, RUNS), 1e-6)
    needed = 20 + SLOWEST * job.hours * groups * float(np.quantile(churn, 0.99))
    fold = max(1.0, needed / MAX_SPELLS) if job.resumable or job.batch else 1.0
    per_path = int(min(needed, MAX_SPELLS))
    # Fewer runs of longer jobs: their means are as sharp, since each run averages over more.
    count = int(np.clip(SAMPLES / max(per_path, 8 * groups), FEWEST_RUNS, RUNS))
    paths = spells.spot_paths(
        rng, churn[:count], units=groups, per_path=per_path, outages=waits,
        # Late in a long run the nodes of a gang have all ages; a short run begins with new ones.
        settled=fold > 1.0, first_wait=1.0 / fold,
    )  # fmt: skip
    return fold, paths
