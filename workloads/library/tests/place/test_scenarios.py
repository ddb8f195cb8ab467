"""Tests the scenarios of Spot: the record, its worst week, and a wait that the user knows."""

import json

import numpy as np
import pytest

from holdfast.place import advice, policies, recommendation, scenarios
from holdfast.place.job import Job
from holdfast.place.scenarios import AT_ONCE, RECORDED, STATED, WORST_WEEK
from workloads.library.tests.place.worlds import A100, H100, L4


@pytest.mark.parametrize(
    ("accelerator", "gang"),
    [
        (L4, 1),
        (A100, 4),
        (H100, 16),
        (H100, 64),
    ],
)
def test_each_scenario_waits_longer_than_the_one_before(accelerator: str, gang: int) -> None:
    at_once, recorded, worst_week = scenarios.list_scenarios(accelerator, gang)
    assert at_once.name == AT_ONCE
    assert recorded.name == RECORDED
    assert worst_week.name == WORST_WEEK
    assert at_once.waits.first_h.mean() == 0.0
    assert recorded.waits.first_h.mean() >= 0.0
    assert worst_week.waits.first_h.mean() > 1.2 * recorded.waits.first_h.mean()
    assert not at_once.waits.later_h.any()


def test_larger_gangs_find_capacity_less_often() -> None:
    shares: list[float] = []
    for gang in (1, 8, 16, 64):
        waits = scenarios.list_scenarios(H100, gang, None, ("us-central1",))[1].waits
        shares.append(float(np.mean(waits.first_h <= 0.0)))
    assert shares[0] > shares[1] > shares[2] == shares[3]


def test_other_gpus_get_the_better_half_and_say_so() -> None:
    recorded = scenarios.list_scenarios(H100, 8)
    assumed = scenarios.list_scenarios(A100, 8, None, ("us-central1",))
    assert len(recorded[1].waits.first_h) == 7
    assert len(assumed[1].waits.first_h) == 4
    assert assumed[1].waits.first_h.mean() < recorded[1].waits.first_h.mean()
    for scenario in assumed[1:]:
        assert "assumed for this GPU" in scenario.basis
    for scenario in recorded:
        assert "assumed" not in scenario.basis


def find_region_zones(region: str) -> list[np.ndarray]:
    record = scenarios.record()
    zones: list[np.ndarray] = []
    for zone, counts in record.items():
        if zone.startswith(f"{region}-"):
            zones.append(counts)
    return zones


def test_worst_week_is_a_week_with_some_starts() -> None:
    worst = scenarios.list_scenarios(H100, 16)[2]
    words = worst.basis.split()
    assert words[:3] == ["one", "week", "of"]
    assert worst.waits.first_h.shape[0] == 1
    zones = find_region_zones(words[3].rstrip(":"))
    up = np.logical_or.reduce(np.stack(zones) >= 16)
    shares = []
    for half in np.array_split(up, 2):
        shares.append(f"{half.mean():.0%}")
    assert worst.basis.endswith(tuple(shares))


def play_record(region: str, work_h: float, restart_h: float) -> list[float]:
    """Plays a job of one node over the zones of a region in the record's own order.

    It starts at every hour of the first nine days, in any zone that has a machine, and moves to
    another when its zone has none. Returns the hours until it is done.
    """
    tick_h = 1 / 6
    up = np.stack(find_region_zones(region)) >= 1
    done: list[float] = []
    for begin in range(0, 9 * 144, 6):
        zone = -1
        left_h = work_h
        for tick in range(begin, up.shape[1]):
            if zone < 0 or not up[zone, tick]:
                zones = np.flatnonzero(up[:, tick])
                zone = int(zones[0]) if len(zones) else -1
                left_h += restart_h if zone >= 0 else 0.0
            if zone >= 0:
                left_h -= tick_h
            if left_h <= 0:
                done.append((tick + 1 - begin) * tick_h)
                break
    return done


def test_middle_scenario_says_what_the_record_says_when_it_is_played() -> None:
    """One H100 node for a day and a deadline of 36 h: the record itself is never late there."""
    job = Job(
        accelerator=H100,
        gpus=8,
        hours=24,
        deadline_h=36,
    )
    world = recommendation.make_world(job, zones=("us-central1",))
    (spot,) = advice.on_spot(job, world, "us-central1", policies.WAIT)
    played = play_record("us-central1", 24.0, job.restart_h)
    assert spot.finish_at(50) == pytest.approx(float(np.median(played)), rel=0.1)
    assert spot.finish_at(95) == pytest.approx(float(np.percentile(played, 95)), rel=0.15)
    assert spot.usual.late < 0.01
    assert float(np.mean(np.array(played) > 36)) < 0.01


def test_a_wait_is_the_least_over_the_zones_that_were_asked() -> None:
    zone = ("us-central1-a",)
    region = ("us-central1-a", "us-central1-b", "us-central1-c")
    zone_waits = scenarios.list_scenarios(H100, 8, None, zone)[1].waits
    region_waits = scenarios.list_scenarios(H100, 8, None, region)[1].waits
    assert region_waits.later_h.mean() < 0.5 * zone_waits.later_h.mean()
    region = scenarios.list_scenarios(H100, 8, None, ("us-central1",))[1].waits
    assert region.later_h.mean() == region_waits.later_h.mean()


def test_a_known_wait_replaces_the_record() -> None:
    at_once, median = scenarios.list_scenarios(H100, 8, 2.0)
    assert at_once.name == AT_ONCE
    assert median.name == STATED
    assert np.median(median.waits.first_h) == pytest.approx(2.0, rel=0.01)
    assert median.waits.later_h.mean() == pytest.approx(6.0, rel=0.01)


def test_waits_are_drawn_as_recorded() -> None:
    waits = scenarios.list_scenarios(H100, 8)[1].waits
    samples = waits.draw(np.random.default_rng(1), 40_000, 2)
    assert samples.mean(axis=0) == pytest.approx(
        [waits.first_h.mean(), waits.later_h.mean()], rel=0.05
    )


def test_the_record_states_where_it_comes_from_and_under_which_license() -> None:
    body = json.loads(scenarios.RECORD.read_text())
    assert body["license"] == "Apache-2.0"
    assert "skynomad-artifact" in body["source"]
    assert body["notice"]
    samples = np.stack(list(scenarios.record().values()))
    assert samples.shape[1] * body["gap_seconds"] == pytest.approx(14.68 * 86_400, rel=0.01)
