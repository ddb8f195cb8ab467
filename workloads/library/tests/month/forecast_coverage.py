"""Jobs of the simulated month, asked at random moments when they will be done and for how much."""

import random
from collections.abc import Sequence

from holdfast.jobs.diagnose.forecast import (
    expect,
    find_billed_h,
    find_left_h,
    make_outlook,
    select_alike,
)
from holdfast.ledger.events import Event, parse
from holdfast.ledger.job_ledger import RunKey, by_run
from holdfast.ledger.pace import Pace, measure
from holdfast.place.forecast import forecast
from holdfast.vocabulary.capacity import Capacity
from workloads.library.tests.month.month import DAY_MIN, Month
from workloads.library.tests.place.recorded_zones import Coverage
from workloads.library.tests.sample import encoded

HOUR_US = 3.6e9
ASKED_EACH = 2


class QuietMonth(Month):
    """Keeps the event lines of jobs and of the node watcher, and publishes nothing."""

    def __init__(self, *, seed: int, days: int) -> None:
        super().__init__(seed=seed, days=days)
        self.lines: list[bytes] = []

    def live(self) -> list[Event]:
        self.add_ordinary_jobs()
        for minute in range(1, self.days * DAY_MIN):
            self.pass_minute(minute)
        return parse(self.lines).events

    def _publish(self) -> None:
        for news in self.written.news():
            self.lines += news.lines
        self.lines += encoded(self.cluster.lines(self.now_s()))


def measure_coverage(*, seed: int, days: int, months: int) -> Coverage:
    """Ask about every job of the months that completed."""
    coverage = Coverage()
    for number in range(months):
        events = QuietMonth(seed=seed + number, days=days).live()
        _ask(by_run(events), random.Random(seed), coverage)
    return coverage


def _ask(
    runs: dict[RunKey, list[Event]],
    rng: random.Random,
    coverage: Coverage,
) -> None:
    paces: dict[RunKey, Pace] = {}
    for key, run in runs.items():
        pace = measure(run)
        if pace is not None:
            paces[key] = pace
    for key, pace in paces.items():
        _, index, _ = key
        # The indices of a job live and end together.
        if not pace.complete or index not in (None, 0):
            continue
        run = runs[key]
        first_us = next(event.t_us for event in run if event.type == "window")
        for _ in range(ASKED_EACH):
            now_us = rng.randrange(first_us, run[-1].t_us)
            past = []
            for other, p in paces.items():
                if runs[other][-1].t_us < now_us:
                    past.append(p)
            _ask_once(run, pace, past, now_us, coverage)


def _ask_once(
    run: Sequence[Event],
    whole: Pace,
    past: Sequence[Pace],
    now_us: int,
    coverage: Coverage,
) -> None:
    """Ask with the lines until now, as `explain` does, and compare with the rest of them."""
    pace = measure([event for event in run if event.t_us <= now_us])
    if pace is None:
        return
    now_s = now_us / 1e6
    left_h = find_left_h(pace, now_s)
    assert left_h is not None, "the lines name the steps of the run"
    expected = expect(Capacity(pace.capacity), pace.accelerator, pace.world_size)
    outlook = make_outlook(
        pace,
        select_alike(pace, past),
        expected,
        left_h,
        now_s,
    )
    end_h = (run[-1].t_us - now_us) / HOUR_US
    paid_h = whole.billed_h - find_billed_h(pace, now_s)
    coverage.judge(forecast(outlook), end_h, paid_h)
