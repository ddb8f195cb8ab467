"""What a useful hour costs on Spot alone, at any churn: the flip points are sought with it.

The simulator's model without a clock: lifetimes that depend on age, gangs whose nodes have ages of their own, whole
checkpoints. The closed forms assume lifetimes without memory and are wrong by an order of magnitude for short jobs,
whose machines are always young. The same draws at every churn, so that the answer is smooth and needs no seed.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from holdfast.place import advice, elastic, forms, gangs, spells
from holdfast.place.advice import KEEP_H
from holdfast.place.belief import World
from holdfast.place.job import Job
from holdfast.place.runs import Floats

SAMPLES, SPELLS = 30_000, 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Billed hours of one node for an hour of work, of one job in one region."""

    job: Job
    world: World
    idle_h: float
    """Billed of each wait, on average."""
    wait_h: float

    @classmethod
    def of(cls, job: Job, world: World, region: str) -> "Curve":
        waits = world.waits(job, region)
        return cls(
            job=replace(job, deadline_h=math.inf), world=world, idle_h=waits.mean_billed_h(KEEP_H),
            wait_h=float(waits.later_h.mean()),
        )  # fmt: skip

    def slowdown(self, churn: float, *, restart_h: float | None = None, checkpoint_h: float | None = None) -> float:
        """At `churn` evictions a node-hour; inf where nothing would ever be done."""
        job = self.job
        restart_h = job.restart_h if restart_h is None else restart_h
        checkpoint_h = job.checkpoint_h if checkpoint_h is None else checkpoint_h
        rate = advice.job_churn(job, churn, self.world.together)
        if job.elastic:
            return self._elastic(churn, restart_h, checkpoint_h)
        fold, spans = self._spans(rate)
        interval = advice.interval_h(replace(job, checkpoint_h=checkpoint_h), rate)
        hours, evictions = _until_done(spans, job.hours / fold, restart_h, interval, 0.0 if job.batch else checkpoint_h)
        # A machine alone leaves no survivors, however often it is taken.
        waiting = 0.0 if job.batch or job.nodes == 1 else evictions * self.idle_h * (job.nodes - 1) / job.nodes
        # The first restart comes once, however often the job is folded.
        return (float(np.mean(hours + waiting)) - restart_h * (1.0 - 1.0 / fold)) * fold / job.hours

    def _elastic(self, churn: float, restart_h: float, checkpoint_h: float) -> float:
        """In closed form: a gang whose work goes on has no last checkpoint to lose."""
        interval = gangs.interval_h(replace(self.job, checkpoint_h=checkpoint_h), churn)
        useful = forms.elastic_goodput(
            nodes=self.job.max_nodes, node_churn=churn, wait_h=self.wait_h, restart_h=restart_h,
            shrink_h=elastic.SHRINK_H, grow_h=elastic.GROW_H, together=self.world.together,
        )  # fmt: skip
        if not useful:
            return math.inf
        billed = forms.running_share(churn, self.wait_h)
        return billed / useful * (1 + checkpoint_h / interval) + restart_h / self.job.hours

    def _spans(self, rate: float) -> tuple[float, Floats]:
        foldable = self.job.resumable or self.job.batch
        fold = max(1.0, rate * self.job.hours / (SPELLS / 4.0)) if foldable else 1.0
        return fold, _drawn(rate, advice.units(self.job, self.world.together), fold > 1.0)


@lru_cache(maxsize=8)
def _drawn(rate: float, groups: int, settled: bool) -> Floats:
    """Two of the three limits are sought at one churn, and so with the same lifetimes."""
    churn = np.full(max(60, SAMPLES // max(SPELLS, 12 * groups)), rate / groups)
    return spells.gang_spells(np.random.default_rng(0), churn, units=groups, per_path=SPELLS, settled=settled)


def _until_done(
    spans: Floats, work_h: float, restart_h: float, interval_h: float, checkpoint_h: float
) -> tuple[Floats, Floats]:
    """Machine hours and evictions of each run that only ever waits for Spot. Work that the spans do not hold goes on
    at their pace; inf where they hold none."""
    useful = np.maximum(spans - restart_h, 0.0)
    # Without checkpoints the period is infinite, and inf / inf is not a number.
    period = interval_h + checkpoint_h if math.isfinite(interval_h) else math.inf
    committed = np.floor(useful / period + 1e-9) * interval_h if math.isfinite(period) else np.zeros_like(useful)
    speed = interval_h / period if math.isfinite(period) else 1.0
    before = np.cumsum(committed, axis=1) - committed
    # A run may end between two checkpoints, so the last stretch counts in full.
    ends = before + useful * speed >= work_h
    last = np.argmax(ends, axis=1)
    rows, done = np.arange(len(spans)), ends.any(axis=1)
    spent = np.cumsum(spans, axis=1) - spans
    hours = spent[rows, last] + restart_h + (work_h - before[rows, last]) / speed
    with np.errstate(divide="ignore"):
        share = work_h / committed.sum(axis=1)
    return (
        np.where(done, hours, spans.sum(axis=1) * share),
        np.where(done, last.astype(float), spans.shape[1] * share),
    )
