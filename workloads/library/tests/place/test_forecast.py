"""Intervals of a running job: what they hold, and how often they hold on recorded zones."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast.place.forecast import (
    PRIOR_RESTART_H,
    SHARE,
    Cost,
    Life,
    Outlook,
    forecast,
    shortest_interval,
)
from holdfast.place.scenarios import flex_waits
from workloads.library.tests.place.recorded_zones import measure_coverage

CALM = Outlook(
    left_h=10.0,
    spread=0.0,
    save_every_h=0.2,
    prior_per_hour=0.0,
    waits=None,
)
STORMY = Outlook(
    left_h=10.0,
    spread=0.0,
    save_every_h=0.2,
    prior_per_hour=0.5,
    waits=None,
    lives=[Life(2.0, interrupted=True)] * 20,
    costs=[Cost(wait_h=1.0, restart_h=0.1, lost_h=0.1)] * 20,
)


def test_an_undisturbed_job_ends_when_its_work_is_done() -> None:
    answer = forecast(CALM)
    assert answer.hours == answer.paid_hours == (10.0, 10.0)
    assert answer.undisturbed >= SHARE


def test_interruptions_delay_the_end_and_waits_are_not_paid() -> None:
    answer = forecast(STORMY)
    low_h, high_h = answer.hours
    assert 10 < low_h < answer.median_h < high_h
    # Five interruptions or so: an hour of wait, and twelve minutes that are paid.
    assert 13 < answer.median_h < 18
    assert 10.5 < answer.median_paid_h < 11.6
    assert answer.undisturbed < SHARE


def test_an_interruption_that_lasts_is_waited_for() -> None:
    outlook = Outlook(
        left_h=1.0,
        spread=0.0,
        save_every_h=0.2,
        prior_per_hour=0.001,
        waits=None,
        costs=[Cost(wait_h=1.0, restart_h=0.1, lost_h=0.0)] * 50,
        down_for_h=0.0,
    )
    fresh = forecast(outlook)
    late = forecast(replace(outlook, down_for_h=0.9))
    assert fresh.median_h == pytest.approx(2.1, abs=0.05)
    assert late.median_h == pytest.approx(1.2, abs=0.05)


def test_planned_ends_count_with_their_waits() -> None:
    """A job of ten hours on machines that end in four, then after eight."""
    planned = replace(CALM, waits=flex_waits(), ends_in_h=4.0, runs_for_h=8.0)
    answer = forecast(planned)
    low_h, _ = answer.hours
    assert answer.undisturbed == 0.0
    assert low_h > 10.0
    # One restart, and at most what was not saved.
    assert 10.0 < answer.median_paid_h < 10.4
    assert answer.median_h > answer.median_paid_h
    in_time = replace(planned, ends_in_h=11.0)
    assert forecast(in_time).hours == (10.0, 10.0)


def test_flex_start_intervals_hold_four_times_in_five() -> None:
    """The jobs are played step by step, with other random numbers than those of the forecast."""
    rng = np.random.default_rng(7)
    waits = flex_waits()
    count = 0
    for _ in range(300):
        ends_in_h = rng.uniform(1.0, 168.0)
        left_h = rng.uniform(200.0, 600.0)
        outlook = replace(
            CALM,
            left_h=left_h,
            waits=waits,
            ends_in_h=ends_in_h,
            runs_for_h=168.0,
        )
        hours = 0.0
        while left_h > ends_in_h:
            wait_h = waits.draw(rng, 1, 2)[0, 1]
            hours += ends_in_h + wait_h + PRIOR_RESTART_H
            left_h += rng.uniform(0.0, outlook.save_every_h) - ends_in_h
            ends_in_h = 168.0
        low_h, high_h = forecast(outlook, draws=1_000).hours
        count += low_h <= hours + left_h <= high_h
    assert 0.75 * 300 <= count <= 0.85 * 300


def test_lanes_that_share_a_queue_are_forecast_together() -> None:
    """Eight workers are played around one queue, with other random numbers."""
    rng = np.random.default_rng(3)
    count = 0
    for _ in range(200):
        lives_h = rng.exponential(2.0, 40)
        lives = [Life(hours, interrupted=True) for hours in lives_h]
        outlook = replace(STORMY, lives=lives, lanes=8)
        low_h, high_h = forecast(outlook).hours
        hours = play_lanes(rng, lanes=8, work_h=80.0)
        count += low_h <= hours <= high_h
    assert 0.75 * 200 <= count <= 0.85 * 200


def play_lanes(rng: np.random.Generator, lanes: int, work_h: float) -> float:
    """Plays workers minute by minute: each lives two hours, then waits one and starts again."""
    tick_h = 1 / 60
    hours = 0.0
    busy_h = rng.exponential(2.0, lanes)
    idle_h = np.zeros(lanes)
    while work_h > 0:
        hours += tick_h
        is_busy = idle_h <= 0
        work_h -= tick_h * is_busy.sum()
        busy_h -= tick_h * is_busy
        idle_h -= tick_h
        is_lost = is_busy & (busy_h <= 0)
        work_h += 0.1 * is_lost.sum()
        idle_h[is_lost] = 1.1
        busy_h[is_lost] = rng.exponential(2.0, int(is_lost.sum()))
    return hours


def test_unseen_waits_last_as_long_again() -> None:
    answer = forecast(
        Outlook(
            left_h=1.0,
            spread=0.0,
            save_every_h=0.2,
            prior_per_hour=0.001,
            waits=None,
            down_for_h=100.0,
        )
    )
    assert 50 < answer.median_h < 200


def test_shortest_interval_holds_its_share() -> None:
    values = np.concatenate([np.zeros(70), np.arange(1.0, 31.0)])
    assert shortest_interval(values) == (0.0, 10.0)


@pytest.mark.process
def test_intervals_hold_four_times_in_five_on_the_recorded_zones() -> None:
    coverage = measure_coverage(seed=1, jobs=400)
    assert coverage.is_calibrated, coverage.describe()
