"""From what the user asked to one answer: assumptions, regions, choice, files."""

import math
from dataclasses import dataclass
from pathlib import Path

from holdfast.contract.errors import InputError, Unjudged
from infra.placement import capacity, choose, emit, hazard, plot
from infra.placement.advice import Option, World, options
from infra.placement.job import Job
from infra.placement.prices import Table, load
from infra.placement.traces import AVAILABLE, PREEMPTED, Recorded, load_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What the user knows about capacity; everything left out is a prior."""

    churn: float | None = None
    measured: Path | None = None
    together: float = 1.0
    flex_wait_h: float = hazard.FLEX_WAIT_H[1]
    traces: Path | None = None
    encoding: str = ""
    seed: int = 0

    def world(self, job: Job, prices: Table) -> World:
        if self.encoding not in ("", AVAILABLE, PREEMPTED):
            raise InputError("encoding", got=self.encoding, allowed=f"{AVAILABLE}, {PREEMPTED}", fix="see the trace")
        if not (0 < self.flex_wait_h < math.inf and self.together >= 1):
            raise InputError(
                "flex wait or together",
                got=f"{self.flex_wait_h:g} h, {self.together:g} nodes",
                allowed="a wait above 0, and 1 or more nodes",
                fix="as in --flex-wait 30m --together 4",
            )
        recorded = self._recorded(job)
        mean_over_median = hazard.FLEX_WAIT_H[0] / hazard.FLEX_WAIT_H[1]
        return World(
            prices=prices,
            churn=self._churn(job, recorded),
            flex_wait_h=(self.flex_wait_h * mean_over_median, self.flex_wait_h),
            together=self.together,
            recorded=recorded,
            seed=self.seed,
        )

    def _churn(self, job: Job, recorded: Recorded | None) -> hazard.Churn:
        if self.churn is not None and self.measured is not None:
            raise InputError("churn", got="--churn and --measured", allowed="one of them", fix="leave one out")
        if self.measured is not None:
            return hazard.read_measured(self.measured, job.accelerator)
        if self.churn is None:
            return hazard.prior(job.accelerator) if recorded is None else hazard.recorded(recorded.churn)
        if not (0 < self.churn < 100):
            raise InputError("churn", got=self.churn, allowed="above 0, below 100 an hour", fix="as in --churn 0.1")
        return hazard.fixed(self.churn)

    def _recorded(self, job: Job) -> Recorded | None:
        if self.traces is None:
            return None
        machines = 1 if job.batch else job.nodes
        return Recorded.of(load_folder(self.traces, machines=machines, encoding=self.encoding))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    world: World
    region: str
    options: list[Option]
    chosen: Option
    reason: str
    limits: choose.Limits | None
    elsewhere: tuple[tuple[str, str, float], ...]
    """Other regions: name, placement taken there, mean USD."""


def answer(job: Job, belief: Belief, region: str = "") -> Answer:
    """The options in the asked or the cheapest region, one of them chosen."""
    world = belief.world(job, load())
    regions = (region,) if region else world.prices.regions(job.accelerator)
    by_region = {name: options(job, world, name) for name in regions}
    picked = {name: pick for name, rows in by_region.items() if (pick := _try(job, rows)) is not None}
    if not picked:
        choose.choose(job, [option for rows in by_region.values() for option in rows])  # raises with every reason
    best = min(picked, key=lambda name: picked[name].mean_usd)
    return Answer(
        world=world,
        region=best,
        options=by_region[best],
        chosen=picked[best],
        reason=choose.reason(job, world, by_region[best], picked[best]),
        limits=choose.limits(job, world, best),
        elsewhere=tuple(
            sorted(((n, p.placement.value, p.mean_usd) for n, p in picked.items() if n != best), key=lambda row: row[2])
        ),
    )


def google(job: Job, answer: Answer, project: str) -> list[str]:
    """Google's own view of Spot there; why not, where it does not answer."""
    try:
        return capacity.read(project, answer.region, job.machine.name, job.nodes).lines()
    except Unjudged as error:
        return [f"not available: {error}"]


def write(job: Job, answer: Answer, folder: Path | None, picture: Path | None) -> list[Path]:
    written: list[Path] = []
    if folder is not None:
        documents = {
            "computeclass.yaml": emit.compute_class(job, answer.options, answer.chosen),
            "placement.yaml": emit.pod(job, answer.world, answer.chosen),
        }
        written += emit.write(folder, documents)
    if picture is not None:
        title = f"{job.gpus} x {job.accelerator}, {job.hours:g} h of work, {answer.region}"
        picture.write_text(plot.svg(answer.options, answer.chosen, title, job.deadline_h))
        written.append(picture)
    return written


def _try(job: Job, rows: list[Option]) -> Option | None:
    try:
        return choose.choose(job, rows)
    except Unjudged:
        return None
