"""Plays jobs on the recorded zones, each asked at a moment when it will be done.

The cluster has run a job of the same size since the record began, so it knows the zone.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.ledger.pace import LEAST_SPREAD
from holdfast.place.forecast import SHARE, Cost, Forecast, Life, Outlook, forecast
from holdfast.place.preemption_rate import PRIOR_CHURN
from holdfast.place.scenarios import HOPELESS, RECORDED_GPU, list_scenarios, record
from holdfast.place.simulation_arrays import Ints

GAP_H = 1 / 6
RESTART_H = 5 / 60
SAVE_EVERY_H = 1 / 6
SIZES = (1, 2, 4, 8)
DAYS_2_H = 48.0
DRAWS = 2_000
LEAST_SHARE = 0.75
MOST_SHARE = 0.85


@dataclass
class Coverage:
    """Counts intervals that held, of jobs whose end is not all but known: nothing interrupts them
    with a probability below 80 %.
    """

    interval_count: int = 0
    times_held: int = 0
    dollars_held: int = 0

    def judge(self, answer: Forecast, end_h: float, paid_h: float) -> None:
        if answer.undisturbed >= SHARE:
            return
        low_h, high_h = answer.hours
        low_paid_h, high_paid_h = answer.paid_hours
        self.interval_count += 1
        self.times_held += low_h <= end_h <= high_h
        self.dollars_held += low_paid_h <= paid_h <= high_paid_h

    def shares(self) -> tuple[float, float]:
        """Return the shares of intervals that held: of the end, and of what it costs."""
        share_of_times = self.times_held / self.interval_count
        share_of_dollars = self.dollars_held / self.interval_count
        return share_of_times, share_of_dollars

    @property
    def is_calibrated(self) -> bool:
        return all(LEAST_SHARE <= share <= MOST_SHARE for share in self.shares())

    def describe(self) -> str:
        """Return `312 of 400 ends and 318 of 400 prices held`."""
        return (
            f"{self.times_held} of {self.interval_count} ends and"
            f" {self.dollars_held} of {self.interval_count} prices held"
        )


@dataclass(kw_only=True)
class Played:
    """One job in one zone."""

    finish_h: float | None
    """None: the record ends before it."""
    spans: list[tuple[float, float]]
    """Begin and end of the work of each attempt."""
    costs: list[tuple[float, Cost]]
    """Pairs of the time at which work went on after an interruption, and its cost."""

    def is_working(self, at_h: float) -> bool:
        return any(begin <= at_h < end for begin, end in self.spans)

    def count_work_h(self, until_h: float) -> float:
        work_h = 0.0
        for begin_h, end_h in self.spans:
            if begin_h < until_h:
                work_h += min(end_h, until_h) - begin_h
        return work_h

    def count_paid_h(self, since_h: float) -> float:
        """Return the hours on machines after a moment at which it works."""
        paid_h = 0.0
        for begin_h, end_h in self.spans:
            if end_h <= since_h:
                continue
            is_present = begin_h <= since_h
            paid_since_h = since_h if is_present else begin_h - RESTART_H
            paid_h += end_h - paid_since_h
        return paid_h

    def list_costs(self, until_h: float) -> list[Cost]:
        return [cost for back_h, cost in self.costs if back_h <= until_h]

    def count_done_h(self, at_h: float) -> float:
        lost_h = sum(cost.lost_h for cost in self.list_costs(at_h))
        return self.count_work_h(at_h) - lost_h

    def list_lives(self, until_h: float) -> list[Life]:
        lives: list[Life] = []
        for begin_h, end_h in self.spans:
            if begin_h >= until_h:
                continue
            hours = min(end_h, until_h) - begin_h
            life = Life(hours, interrupted=end_h <= until_h)
            lives.append(life)
        return lives


def list_spells(counts: Ints, size: int) -> list[tuple[float, float]]:
    """Return begin and end, in hours, of the times in which a gang of this size could run."""
    spells: list[tuple[float, float]] = []
    begin: int | None = None
    for tick, count in enumerate(counts):
        if count >= size and begin is None:
            begin = tick
        if count < size and begin is not None:
            spells.append((begin * GAP_H, tick * GAP_H))
            begin = None
    if begin is not None:
        spells.append((begin * GAP_H, len(counts) * GAP_H))
    return spells


def play(
    spells: Sequence[tuple[float, float]],
    begin_h: float,
    work_h: float,
    rng: random.Random,
) -> Played:
    """Play a job without a notice: each loss costs the work since its last save."""
    played = Played(finish_h=None, spans=[], costs=[])
    left_h = work_h
    lost_h = 0.0
    for up_h, down_h in spells:
        machine_h = max(up_h, begin_h)
        work_begin_h = machine_h + RESTART_H
        if work_begin_h >= down_h:
            continue
        if played.spans:
            _, ended_h = played.spans[-1]
            cost = Cost(
                wait_h=machine_h - ended_h,
                restart_h=RESTART_H,
                lost_h=lost_h,
            )
            played.costs.append((work_begin_h, cost))
        if work_begin_h + left_h <= down_h:
            played.finish_h = work_begin_h + left_h
            played.spans.append((work_begin_h, played.finish_h))
            break
        played.spans.append((work_begin_h, down_h))
        lost_h = min(down_h - work_begin_h, rng.random() * SAVE_EVERY_H)
        left_h -= down_h - work_begin_h - lost_h
    return played


def measure_coverage(*, seed: int, jobs: int) -> Coverage:
    """Ask for jobs of random size, zone, work and begin until `jobs` intervals have counted."""
    rng = random.Random(seed)
    coverage = Coverage()
    zones = sorted(record())
    while coverage.interval_count < jobs:
        zone = rng.choice(zones)
        counts = record()[zone]
        size = rng.choice(SIZES)
        end_h = len(counts) * GAP_H
        spells = list_spells(counts, size)
        up_hours = sum(down_h - up_h for up_h, down_h in spells)
        if up_hours < HOPELESS * end_h:
            continue
        work_h = rng.uniform(2, DAYS_2_H)
        job = play(
            spells,
            rng.uniform(DAYS_2_H, 0.6 * end_h),
            work_h,
            rng,
        )
        if not job.spans:
            continue
        first_h, _ = job.spans[0]
        now_h = rng.uniform(first_h + 0.5, job.finish_h or end_h)
        if not job.is_working(now_h):
            continue
        history = play(spells, 0.0, 10 * end_h, rng)
        outlook = _make_outlook(job, history, size, work_h, now_h)
        answer = forecast(outlook, draws=DRAWS)
        _, high_h = answer.hours
        if job.finish_h is not None:
            coverage.judge(answer, job.finish_h - now_h, job.count_paid_h(now_h))
        elif high_h < end_h - now_h:
            coverage.judge(answer, end_h, end_h)  # later than the interval says
    return coverage


def _make_outlook(
    job: Played,
    history: Played,
    size: int,
    work_h: float,
    now_h: float,
) -> Outlook:
    present_h = max(begin_h for begin_h, _ in job.spans if begin_h <= now_h)
    return Outlook(
        left_h=work_h - job.count_done_h(now_h),
        spread=LEAST_SPREAD,
        save_every_h=SAVE_EVERY_H,
        prior_per_hour=size * PRIOR_CHURN[RECORDED_GPU],
        waits=list_scenarios(RECORDED_GPU, size)[1].waits,
        lives=history.list_lives(now_h),
        age_h=now_h - present_h,
        costs=history.list_costs(now_h),
    )
