"""What an elastic gang would cost, beside the rigid one of the same nodes: rows for the answer of `place`.

The same churn, waits and prices as for the rigid gang. Only what a loss costs differs.
"""

import math
from dataclasses import replace

import numpy as np

from holdfast.contract.capacity import Capacity, Placement
from holdfast.place import advice, elastic, outages, policies, weeks
from holdfast.place.belief import Option, World
from holdfast.place.elastic import Counts, Gang
from holdfast.place.job import Job
from holdfast.place.matrix import WORTH_ELASTIC
from holdfast.place.runs import Floats, Ints, Outcome

MAX_LOSSES = 200
FEWEST_RUNS, MOST_RUNS, REPLAYS = 100, 600, 300
SLOWEST = 2.5  # times the work; what is lost later than that is not drawn


def options(job: Job, world: World, region: str) -> list[Option]:
    """Every row of the rigid job; for a range of nodes also those of the elastic gang."""
    rows = weeks.ranged(job, world, region, advice.options(job, world, region))
    return [*rows, *_elastic(job, world, region)] if job.elastic else rows


def beside(job: Job, world: World, region: str) -> list[Option]:
    """What a rigid gang would cost as an elastic one from half of its nodes; none where that saves little or cannot be."""
    nodes = job.nodes
    if job.elastic or job.batch or not job.resumable or nodes < WORTH_ELASTIC:
        return []
    ranged = replace(job, min_nodes=nodes // 2, max_nodes=nodes)
    return [row for row in _elastic(ranged, world, region) if not row.refused]


def _elastic(job: Job, world: World, region: str) -> list[Option]:
    modes = (False,) if math.isinf(job.deadline_h) else (False, True)
    return [_row(job, world, region, in_time=each) for each in modes]


def gang_of(job: Job, node_churn: float) -> Gang:
    return Gang(
        nodes=job.max_nodes, least=job.min_nodes, shards=elastic.SHARDS_A_NODE * job.max_nodes,
        restart_h=job.restart_h, interval_h=interval_h(job, node_churn), checkpoint_h=job.checkpoint_h,
    )  # fmt: skip


def interval_h(job: Job, node_churn: float) -> float:
    """Work between checkpoints of an elastic gang: it stops more seldom than one of its machines is lost."""
    return advice.interval_h(job, node_churn)


def _row(job: Job, world: World, region: str, *, in_time: bool) -> Option:
    name = f"elastic {job.min_nodes}..{job.max_nodes}"
    blank = Option(
        placement=Placement.HYBRID if in_time else Placement.SPOT,
        policy=f"{name}, on-demand in time" if in_time else f"{name}, wait for Spot",
        region=region,
        carried_out_by="someone who moves the job" if in_time else policies.ONE_CAPACITY,
    )
    for needed in (Capacity.SPOT, Capacity.ON_DEMAND) if in_time else (Capacity.SPOT,):
        if missing := advice.unsold(job, world, region, needed):
            return replace(blank, refused=missing)
    if world.recorded is not None and any(trace.counts is None for trace in world.recorded.traces):
        return replace(blank, refused="the traces hold how many machines were lost, not how many were there")
    return _priced(job, world, blank, in_time)


def _priced(job: Job, world: World, blank: Option, in_time: bool) -> Option:
    spot = advice.quote(job, world, blank.region, Capacity.SPOT)
    demand = advice.quote(job, world, blank.region, Capacity.ON_DEMAND)
    assert spot is not None
    churn = advice.job_churn(job, world.churn.per_hour, world.together)
    fold = 1.0 if world.recorded else max(1.0, job.hours * churn / MAX_LOSSES)
    work_h = job.hours / fold
    path, counts = _counts(job, world, blank.region, work_h, fold)
    outcome = elastic.simulate(
        gang_of(job, world.churn.per_hour), counts, work_h=work_h, in_time=in_time,
        deadline_h=max(job.deadline_h / fold, work_h + job.restart_h),
        spot_usd=spot.usd, on_demand_usd=demand.usd if demand else math.nan if in_time else 0.0,
    )  # fmt: skip
    if np.any(np.isinf(outcome.finish_h)):
        return replace(blank, refused="in the recorded traces some runs never finish")
    return replace(
        blank,
        usd_per_hour=spot.usd,
        usd=outcome.usd * fold,
        finish_h=outcome.finish_h * fold,
        lateness=_late(job, outcome, fold, world.on_demand_refused),
        late_weeks=None if in_time else _late_weeks(job, world),
        refusal=world.on_demand_refused,
        recording=path,
        evictions=float(np.mean(outcome.evictions)) * fold,
        inferred=spot.inferred,
    )


def _late(job: Job, outcome: Outcome, fold: float, refused: float) -> Floats:
    late = (outcome.finish_h * fold > job.deadline_h + advice.LATE_EPS_H).astype(np.float64)
    # Whoever had to buy and is refused is taken for late: it was at the last moment.
    return np.where(outcome.on_demand_h > 0.0, np.maximum(late, refused), late)


def _late_weeks(job: Job, world: World) -> Floats | None:
    if not weeks.counts(job, world):
        return None
    path, offset_h = weeks.starts(world.weeks)
    rows = [week.counts for week in world.weeks if week.counts is not None]
    there = elastic.replayed(
        rows, [week.gap_h for week in world.weeks], job.max_nodes, path, offset_h,
        weeks.tiles(job, world.weeks), job.deadline_h,
    )  # fmt: skip
    outcome = elastic.simulate(gang_of(job, world.churn.per_hour), there, work_h=job.hours)
    return weeks.late(job, outcome)


def _counts(job: Job, world: World, region: str, work_h: float, fold: float) -> tuple[Ints | None, Counts]:
    if world.recorded is not None:
        rng = np.random.default_rng(world.seed + 1)
        path = rng.integers(len(world.recorded.hours), size=REPLAYS)
        offset = rng.uniform(0.0, world.recorded.hours[path])
        traces = world.recorded.traces
        rows = [trace.counts for trace in traces if trace.counts is not None]
        return path, elastic.replayed(rows, [t.gap_h for t in traces], job.max_nodes, path, offset)
    return None, _drawn(job, world, region, work_h, fold)


def _drawn(job: Job, world: World, region: str, work_h: float, fold: float) -> Counts:
    rng = np.random.default_rng(world.seed)
    units = math.gcd(advice.units(job, world.together), job.max_nodes)
    per_unit = advice.job_churn(job, 1.0, world.together) / units
    churn = np.maximum(per_unit * world.churn.draw(rng, advice.RUNS), 1e-6)
    mean = SLOWEST * work_h * float(np.quantile(churn, 0.9))
    spells = math.ceil(mean + 4.0 * math.sqrt(mean)) + 2
    runs = int(np.clip(advice.SAMPLES / (2 * units * spells), FEWEST_RUNS, MOST_RUNS))
    # A replacement waits as the whole gang would; fewer nodes to begin with are there sooner.
    whole = world.waits(job, region).draw(rng, runs, 1 + units * spells)
    few = (world.outages or outages.prior(job.accelerator, job.min_nodes, region)).draw(rng, runs, 1)[:, 0]
    # The same luck for both: where the least wait long, all wait longer.
    few = np.sort(few)[np.argsort(np.argsort(whole[:, 0]))]
    first = np.repeat(np.maximum(few, whole[:, 0])[:, None], units, axis=1)
    first[:, : math.ceil(job.min_nodes * units / job.max_nodes)] = few[:, None]
    return elastic.drawn(
        rng, churn[:runs], units=units, nodes=job.max_nodes, first_h=first / fold,
        waits_h=whole[:, 1:].reshape(runs, units, spells), settled=fold > 1.0,
    )  # fmt: skip
