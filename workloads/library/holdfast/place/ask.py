"""From what the user asked to one answer: beliefs, regions, choice."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from holdfast.contract.errors import InputError
from holdfast.contract.values import between
from holdfast.place import advice, break_even, choose, hazard
from holdfast.place.belief import Option, World
from holdfast.place.break_even import Estimate, Flip
from holdfast.place.job import Job
from holdfast.place.matrix import Deadline
from holdfast.place.prices import Table, load
from holdfast.platform import Platform

MAX_WAIT_H = 24.0 * 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What the user knows about capacity; everything left out is assumed."""

    churn: float | None = None
    """Preemptions a node-hour."""
    measured: Path | None = None
    """The same, as `holdfast churn --json` printed it."""
    spot_wait_h: float | None = None
    """Median; None: as in the record."""

    def world(self, job: Job, prices: Table) -> World:
        if self.spot_wait_h is not None:
            between("Spot wait", self.spot_wait_h, 1e-3, MAX_WAIT_H, fix="hours above 0, as in --spot-wait 2h")
        return World(prices=prices, churn=self._churn(job), spot_wait_h=self.spot_wait_h)

    def _churn(self, job: Job) -> hazard.Churn:
        if self.measured is not None:
            return hazard.read_measured(self.measured, job.accelerator)
        if self.churn is None:
            return hazard.prior(job.accelerator)
        between("churn", self.churn, 1e-6, 100, fix="preemptions a running node-hour, as in --churn 0.1")
        return hazard.fixed(self.churn)


def belief(churn: str, spot_wait_h: float | None) -> Belief:
    """As typed: `0.1`, or the path of a measurement."""
    if re.fullmatch(r"\d*\.?\d+(e-?\d+)?", churn):
        return Belief(churn=float(churn), spot_wait_h=spot_wait_h)
    return Belief(measured=Path(churn) if churn else None, spot_wait_h=spot_wait_h)


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


def answer(job: Job, belief: Belief, region: str = "") -> Answer:
    """The options in the cheapest of the allowed regions, one of them chosen.

    region: where the data may lie, as `us-central1`, `europe` or `europe,us-east4`; empty: anywhere. InputError for no
    such region, Unjudged where no option keeps the deadline.
    """
    world = belief.world(job, load())
    # Where time is short, most of the hours are bought on demand, and Spot's price says little.
    tight = Deadline.of(job.hours, job.deadline_h) is Deadline.TIGHT
    names = allowed(world.prices.regions(job.accelerator), region)
    # By an estimate: simulating all regions would take most of the answer's time.
    ranked = break_even.estimates(job, world, names, with_spot=not tight)
    refused: list[Option] = []
    for estimate in ranked:
        rows = advice.options(job, world, estimate.region)
        if choose.keeping(job, rows):
            break
        refused += rows
    else:
        rows = refused
    # Raises with every reason where no region keeps the deadline.
    chosen = choose.choose(job, rows)
    flip = break_even.flip(job, world, chosen.region)
    return Answer(
        world=world, region=chosen.region, options=rows, chosen=chosen, flip=flip,
        reason=choose.reason(job, world, rows, chosen, flip),
        elsewhere=tuple(e for e in ranked if e.region != chosen.region and e.usd < math.inf),
    )  # fmt: skip


def allowed(regions: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Those that the text names, or that begin with a name of it up to a dash (`europe`)."""
    wanted = [each.strip().lower() for each in text.split(",")]
    found = tuple(r for r in regions if not text or any(r == each or r.startswith(f"{each}-") for each in wanted))
    if (not all(wanted) and text) or not found:
        raise InputError(
            "--region", got=text, allowed=", ".join(regions),
            fix="as in --region us-central1, or --region europe,us-east4; `holdfast prices refresh` fetches more",
        )  # fmt: skip
    return found


def machines_of(platform: Platform) -> frozenset[str]:
    """Machine types of its GPU pools."""
    return frozenset(pool.machine_type for pool in platform.pools if pool.gpus_per_node)
