"""From what the user asked to one answer: assumptions, regions, choice, files."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.contract.errors import InputError, Unjudged
from holdfast.contract.values import between
from holdfast.place import advice, choose, emit, gangs, hazard, learned, option_names, outages, plot, zones
from holdfast.place.belief import Option, World
from holdfast.place.commitment import Commitment
from holdfast.place.job import Job
from holdfast.place.location import NO_MOVE, Location, Move, after
from holdfast.place.matrix import Deadline
from holdfast.place.prices import Table, load
from holdfast.place.traces import AVAILABLE, PREEMPTED, Recorded, Trace, load_folder
from holdfast.platform import read

MAX_SEED = 2**32 - 1
MAX_TOGETHER = 1024
MAX_WAIT_H = 24.0 * 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What the user knows about capacity; everything left out is a prior."""

    churn: float | None = None
    measured: Path | None = None
    together: float = 1.0
    flex_wait_h: float | None = None
    """Median; None: as assumed, corrected by what was measured."""
    spot_wait_h: float | None = None
    """Median; None: as recorded for such a gang."""
    traces: Path | None = None
    on_demand_refused: float = 0.0
    any_zone: bool = False
    """The traces are zones of one region, recorded side by side, and the job may move between them."""
    encoding: str = ""
    seed: int = 0

    def world(self, job: Job, prices: Table) -> World:
        if self.encoding not in ("", AVAILABLE, PREEMPTED):
            raise InputError("encoding", got=self.encoding, allowed=f"{AVAILABLE}, {PREEMPTED}", fix="see the trace")
        if self.flex_wait_h is not None:
            between("flex wait", self.flex_wait_h, 1e-3, MAX_WAIT_H, fix="hours above 0, as in --flex-wait 30m")
        between("nodes together", self.together, 1, MAX_TOGETHER, fix="as in --together 4")
        between("refused on-demand", self.on_demand_refused, 0, 1, fix="a share of 1, as in --on-demand-refused 0.05")
        between("seed", self.seed, 0, MAX_SEED, fix="as in --seed 7")
        if self.spot_wait_h is not None:
            between("Spot wait", self.spot_wait_h, 1e-3, MAX_WAIT_H, fix="hours above 0, as in --spot-wait 2h")
        found = self._traces(job)
        recorded = Recorded.of(found) if found else None
        churn = self._churn(job, recorded)
        waits = learned.Waits() if self.measured is None else learned.read(self.measured, job.accelerator)
        return World(
            prices=prices,
            churn=churn,
            outages=None if self.spot_wait_h is None else _skewed(self.spot_wait_h),
            flex_waits=waits.flex(_assumed()) if self.flex_wait_h is None else _skewed(self.flex_wait_h),
            learned=waits,
            together=self.together,
            recorded=recorded,
            on_demand_refused=self.on_demand_refused,
            any_zone=Recorded.of([zones.together(found)]) if self.any_zone and found else None,
            seed=self.seed,
        )

    def _churn(self, job: Job, recorded: Recorded | None) -> hazard.Churn:
        if self.churn is not None and self.measured is not None:
            raise InputError("churn", got="--churn and --measured", allowed="one of them", fix="leave one out")
        if self.measured is not None:
            return hazard.read_measured(self.measured, job.accelerator)
        if self.churn is None:
            return hazard.prior(job.accelerator) if recorded is None else hazard.recorded(recorded.churn)
        between("churn", self.churn, 1e-6, 100, fix="evictions a running node-hour, as in --churn 0.1")
        return hazard.fixed(self.churn)

    def _traces(self, job: Job) -> list[Trace]:
        if self.traces is None:
            return []
        return load_folder(self.traces, machines=1 if job.batch else job.nodes, encoding=self.encoding)


def _assumed() -> outages.Outages:
    return outages.lognormal(*hazard.FLEX_WAIT_H, source="assumed: Google gives no estimate")


def _skewed(median_h: float) -> outages.Outages:
    """A median of the user's, with the tail that waits in queues have."""
    mean, median = hazard.FLEX_WAIT_H
    return outages.lognormal(median_h * mean / median, median_h)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    world: World
    region: str
    options: list[Option]
    chosen: Option
    reason: str
    limits: choose.Limits | None
    tie: Option | None
    regret: float
    """Of on-demand's cost: what the choice costs above the cheapest that keeps the deadline on average."""
    emitted: Option
    """What the written manifests do by themselves; the chosen option where they carry it out."""
    elsewhere: tuple[tuple[str, str, float], ...]
    """Other regions: name, cheapest capacity there, USD by the estimate that ranks them, with the data's move."""
    move: Move = NO_MOVE
    """Of the data to the region; contained in every option."""
    as_elastic: tuple[Option, ...] = ()
    """Of a rigid gang: what it would be as an elastic one. Never chosen, since each node must hold the whole state."""
    committed: Commitment | None = None
    """What the user could have instead, beside the options."""
    data_in: str = ""
    """Where the data lies now; empty: not stated."""


def answer(job: Job, belief: Belief, region: str = "", location: Location | None = None) -> Answer:
    """The options in the asked or the cheapest allowed region, one of them chosen."""
    location = location or Location()
    world = belief.world(job, load())
    ranked = _ranked(job, world, region, location)
    refused: list[Option] = []
    for estimate in ranked:
        there = _in_time_for(job, location.move(estimate.region))
        here = world.at(there, estimate.region)
        rows = options(there, here, estimate.region, location)
        if chosen := _settled(there, here, rows, location):
            break
        refused += rows
    else:
        choose.choose(job, refused)  # raises with every reason
        raise AssertionError
    job, world, move = there, here, location.move(estimate.region)
    flip = choose.limits(job, world, estimate.region, rows)
    return Answer(
        world=world,
        region=estimate.region,
        options=rows,
        chosen=chosen,
        reason=choose.reason(job, world, rows, chosen, flip),
        limits=flip,
        tie=choose.tie(job, rows, chosen),
        regret=choose.regret(job, rows, chosen),
        emitted=emitted(job, world, rows, chosen, move),
        move=move,
        as_elastic=tuple(after(move, gangs.beside(job, world, estimate.region))),
        data_in=location.region,
        elsewhere=tuple((e.region, e.capacity.value, e.usd) for e in ranked if e is not estimate and e.usd < math.inf),
    )


def options(job: Job, world: World, region: str, location: Location) -> list[Option]:
    return after(location.move(region), gangs.options(job, world, region))


def _in_time_for(job: Job, move: Move) -> Job:
    """The job with what the move leaves of its time; InputError where that is too little."""
    return replace(job, deadline_h=job.deadline_h - move.hours) if move.hours else job


def _ranked(job: Job, world: World, region: str, location: Location) -> list[choose.Estimate]:
    """Regions by what the job costs there, estimated: simulating all of them would take most of the answer's time."""
    names = location.allowed((region,) if region else world.prices.regions(job.accelerator))
    # Where the data cannot arrive in time, the job cannot either; if that is everywhere, the job is refused for it.
    least_h = job.hours + job.restart_h
    names = tuple(n for n in names if job.deadline_h - location.move(n).hours >= least_h) or names
    # Where time is short, most of the hours are bought on demand, and Spot's price says little.
    tight = Deadline.of(job.hours, job.deadline_h) is Deadline.TIGHT
    found = [choose.estimate(job, world.at(job, name), name, with_spot=not tight) for name in names]
    return sorted((replace(e, usd=e.usd + location.move(e.region).usd) for e in found), key=lambda e: e.usd)


def _settled(job: Job, world: World, rows: list[Option], location: Location) -> Option | None:
    """The choice of the standard sample, found among these rows: another seed shows the noise, and decides nothing."""
    try:
        own = choose.choose(job, rows)
    except Unjudged:
        return None
    if world.seed == 0:
        return own
    # Two seeds that choose differently leave the user with no answer at all.
    standard = choose.choose(job, options(job, replace(world, seed=0), own.region, location))
    return next((o for o in rows if (o.placement, o.policy) == (standard.placement, standard.policy)), own)


def emitted(job: Job, world: World, rows: list[Option], chosen: Option, move: Move = NO_MOVE) -> Option:
    """A ComputeClass knows no deadline: of a mix that does it gets the nearest, priced as it is."""
    policy = emit.policy(chosen)
    if policy is None:
        return chosen
    found = next((o for o in rows if o.policy == option_names.on_spot(policy)), None)
    return found or after(move, [advice.under(advice.Scene.of(job, world, chosen.region), policy)])[0]


def machines_of(document: str) -> frozenset[str]:
    """Machine types of the GPU pools of a platform. Raises InputError for a document that cannot be read."""
    return frozenset(pool.machine_type for pool in read(Path(document)).pools if pool.gpus_per_node)


def region_of(document: str) -> str:
    """The region where a platform buys. Raises InputError for a document that cannot be read."""
    return read(Path(document)).price_region


def google(job: Job, answer: Answer, project: str) -> list[str]:
    """Google's own view of Spot there; why not, where it does not answer."""
    # Brings the HTTP client with it, which takes longer than a table of prices.
    from holdfast.place import capacity

    try:
        return capacity.read(project, answer.region, job.machine.name, job.nodes).lines()
    except Unjudged as error:
        return [f"not available: {error}"]


def write(job: Job, answer: Answer, folder: Path | None, picture: Path | None) -> list[Path]:
    written: list[Path] = []
    if folder is not None:
        documents = {
            "computeclass.yaml": emit.compute_class(job, answer.emitted),
            "placement.yaml": emit.pod(job, answer.world, answer.chosen, answer.emitted),
        }
        written += _writing("--emit", folder, lambda: emit.write(folder, documents))
    if picture is not None:
        title = f"{job.gpus} x {job.accelerator}, {job.hours:g} h of work, {answer.region}"
        drawn = plot.svg(answer.options, answer.chosen, title, job.deadline_h)
        written += _writing("--plot", picture, lambda: _drawn(picture, drawn))
    return written


def _drawn(picture: Path, text: str) -> list[Path]:
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(text)
    return [picture]


def _writing(flag: str, path: Path, write: Callable[[], list[Path]]) -> list[Path]:
    try:
        return write()
    except OSError as error:
        raise InputError(
            f"{flag} cannot be written", got=f"{path}: {error.strerror}", allowed="a path that this user may write",
            fix=f"give another path to {flag}",
        ) from error  # fmt: skip
