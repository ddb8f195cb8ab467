"""What each capacity would cost for a job and when it would be finished: simulated, as distributions.

Every option appears, also one that has no price or no answer: then with its
reason. Money and time stand side by side, because waiting is cheap in money and dear in time.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from holdfast.contract.errors import InputError
from holdfast.contract.lifecycle import FLEX_MAX_RUN_S
from infra.contract.capacity import Capacity, Placement
from infra.placement import forms, hazard, policies
from infra.placement.hazard import Churn
from infra.placement.job import Job
from infra.placement.prices import Table
from infra.placement.runs import Floats, Ints, Outcome, Paths, Runs, runs_of
from infra.placement.simulate import simulate
from infra.placement.traces import Recorded

RUNS = 2_000
MAX_LIVES = 600  # machines a run may use up before the simulation gives up on it
GAVE_UP = 0.01
MICRO_BATCH_H = 10 / 3600
FLEX_MAX_RUN_H = FLEX_MAX_RUN_S / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that is believed about capacity, apart from the job."""

    prices: Table
    churn: Churn
    outage_h: tuple[float, float] = hazard.OUTAGE_H
    flex_wait_h: tuple[float, float] = hazard.FLEX_WAIT_H
    together: float = 1.0
    """Nodes that one reclaim takes from a gang, on average."""
    recorded: Recorded | None = None
    """Replaces the hazard: each run starts somewhere on one of these traces."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    placement: Placement
    policy: str
    region: str
    usd_per_hour: float = math.nan
    """Of the interruptible or only capacity, all nodes."""
    usd: Floats = field(default_factory=lambda: np.array([math.nan]))
    finish_h: Floats = field(default_factory=lambda: np.array([math.nan]))
    late: float = math.nan
    evictions: float = math.nan
    inferred: bool = False
    refused: str = ""

    @property
    def mean_usd(self) -> float:
        return float(np.mean(self.usd))

    def usd_at(self, percent: float) -> float:
        return _percentile(self.usd, percent)

    def finish_at(self, percent: float) -> float:
        return _percentile(self.finish_h, percent)


def job_churn(job: Job, node_churn: float, together: float) -> float:
    """Evictions of the job an hour. Nodes that work from a queue do not stop each other."""
    if job.batch:
        return node_churn
    return forms.gang_churn(nodes=job.nodes, node_churn=node_churn, together=together)


def interval_h(job: Job, churn: float) -> float:
    """Work between checkpoints that costs least at this churn of the whole job."""
    if job.batch:
        return MICRO_BATCH_H
    return forms.daly(job.checkpoint_h, churn) if job.resumable else math.inf


def options(job: Job, world: World, region: str) -> list[Option]:
    """One row a capacity, then the mixes; with a deadline also the queue with a way out."""
    if region not in world.prices.regions(job.accelerator):
        raise InputError(
            f"no prices for {job.accelerator}",
            got=region,
            allowed=", ".join(world.prices.regions(job.accelerator)),
            fix="take one of these, or fetch more with `python -m infra prices refresh`",
        )
    single = [_demand(job, world, region), _flex(job, world, region), _spot(job, world, region)]
    mixed = [_hybrid(job, world, region)]
    if math.isfinite(job.deadline_h):
        mixed.append(_flex(job, world, region, in_time=True))
    return single + mixed


def _demand(job: Job, world: World, region: str) -> Option:
    runs = _runs(job, world, 1, spot=Capacity.ON_DEMAND, region=region)
    blank = Option(placement=Placement.ON_DEMAND, policy="on-demand only", region=region)
    never = Paths(edges_h=np.full((1, 1), np.inf), starts_up=np.zeros(1, bool))
    return _answer(job, world, blank, Capacity.ON_DEMAND, runs, never, policies.ON_DEMAND_ONLY)


def _flex(job: Job, world: World, region: str, *, in_time: bool = False) -> Option:
    name = "queue, on-demand in time" if in_time else "wait in the queue"
    blank = Option(placement=Placement.FLEX_START, policy=name, region=region)
    # A granted machine stays, so nothing is gained by giving up the queue before the last safe moment.
    policy = policies.GREEDY if in_time else policies.WAIT
    runs = _runs(job, world, RUNS, spot=Capacity.FLEX_START, region=region)
    if not job.resumable and not job.batch and job.hours + job.restart_h > FLEX_MAX_RUN_H:
        return _refuse(blank, f"the job cannot resume and is longer than the {FLEX_MAX_RUN_H:.0f} h of a node")
    rounds = math.ceil(job.hours / (FLEX_MAX_RUN_H - job.restart_h)) + 2
    rng = np.random.default_rng(world.seed)
    paths = hazard.flex_paths(rng, RUNS, max_run_h=FLEX_MAX_RUN_H, rounds=rounds, wait_h=world.flex_wait_h)
    return _answer(job, world, blank, Capacity.FLEX_START, runs, paths, policy)


def _spot(job: Job, world: World, region: str) -> Option:
    blank = Option(placement=Placement.SPOT, policy="wait for Spot", region=region)
    runs = _runs(job, world, RUNS, spot=Capacity.SPOT, region=region)
    return _answer(job, world, blank, Capacity.SPOT, runs, _spot_paths(job, world), policies.WAIT)


def _hybrid(job: Job, world: World, region: str) -> Option:
    policy = policies.PATIENT if math.isfinite(job.deadline_h) else policies.HYBRID
    name = "Spot, on-demand in time" if policy is policies.PATIENT else "Spot, else on-demand at once"
    blank = Option(placement=Placement.HYBRID, policy=name, region=region)
    runs = _runs(job, world, RUNS, spot=Capacity.SPOT, region=region)
    return _answer(job, world, blank, Capacity.SPOT, runs, _spot_paths(job, world), policy)


def _answer(
    job: Job, world: World, blank: Option, capacity: Capacity, runs: Runs, paths: Paths, policy: policies.Policy
) -> Option:
    quote = world.prices.quote(job.machine, blank.region, capacity)
    for needed in (capacity,) if policy is policies.WAIT else (capacity, Capacity.ON_DEMAND):
        if world.prices.quote(job.machine, blank.region, needed) is None:
            return _refuse(blank, f"no {needed.value} price of {job.machine.name} in {blank.region}")
    assert quote is not None
    outcome = simulate(runs, paths, policy)
    if stuck := _stuck(outcome, paths):
        return _refuse(blank, stuck)
    return Option(
        placement=blank.placement,
        policy=blank.policy,
        region=blank.region,
        usd_per_hour=quote.usd * job.nodes,
        usd=outcome.usd,
        finish_h=outcome.finish_h,
        late=float(np.mean(outcome.finish_h > job.deadline_h + 1e-6)),
        evictions=float(np.mean(outcome.evictions)),
        inferred=quote.inferred,
    )


def _stuck(outcome: Outcome, paths: Paths) -> str:
    if np.any(np.isinf(outcome.finish_h)):
        return "in the recorded traces some runs never finish"
    spells = paths.edges_h.shape[1] // 2
    own = spells > 0 and len(paths.edges_h) == len(outcome.usd)
    spent = own and float(np.mean(outcome.evictions >= spells)) > GAVE_UP
    return (
        f"not finished after {spells} evictions: the restart or the lost work is too long for this churn"
        if spent
        else ""
    )


def _refuse(blank: Option, why: str) -> Option:
    return Option(placement=blank.placement, policy=blank.policy, region=blank.region, refused=why)


def _runs(job: Job, world: World, count: int, *, spot: Capacity, region: str) -> Runs:
    churn = job_churn(job, world.churn.per_hour, world.together)
    price = {c: q.usd * job.nodes for c in Capacity if (q := world.prices.quote(job.machine, region, c))}
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
        on_demand_usd=price.get(Capacity.ON_DEMAND, math.nan),
        idle_usd=0.0 if undisturbed or job.batch else price.get(spot, math.nan) * (job.nodes - 1) / job.nodes,
        path=path,
        offset_h=offset_h,
    )


def _starts(world: World, count: int) -> tuple[Ints, Floats] | tuple[None, None]:
    if world.recorded is None:
        return None, None
    rng = np.random.default_rng(world.seed + 1)
    path = rng.integers(len(world.recorded.hours), size=count)
    return path, rng.uniform(0.0, world.recorded.hours[path])


def _spot_paths(job: Job, world: World) -> Paths:
    if world.recorded is not None:
        return world.recorded.paths
    rng = np.random.default_rng(world.seed)
    churn = np.maximum(job_churn(job, 1.0, world.together) * world.churn.draw(rng, RUNS), 1e-6)
    spells = int(min(MAX_LIVES, 20 + 4 * job.hours * float(np.quantile(churn, 0.99))))
    return hazard.spot_paths(rng, churn, per_path=spells, outage_h=world.outage_h)


def _percentile(values: Floats, percent: float) -> float:
    return float(np.percentile(values, percent))
