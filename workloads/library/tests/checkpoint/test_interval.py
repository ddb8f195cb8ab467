"""The interval: what a save costs, and a hazard that counts quiet time."""

import random

import pytest

from holdfast.checkpoint.cadence import HOUR_S, Hazard, SaveCostModel


def test_the_estimate_finds_the_rate_of_censored_lifetimes() -> None:
    rng = random.Random(3)
    hazard = Hazard()
    for _ in range(3000):
        lifetime, watched = rng.expovariate(1 / (2 * HOUR_S)), rng.uniform(0, HOUR_S)
        hazard.exposure_s += min(lifetime, watched)
        hazard.events += lifetime < watched
    assert 1 / hazard.rate == pytest.approx(2 * HOUR_S, rel=0.08)


def test_a_hazard_survives_its_journey_through_a_checkpoint() -> None:
    of_an_older_release = {"hazard": {"events": [1.0, 0.0], "exposure_s": [HOUR_S, 3 * HOUR_S]}, "ended": True}
    for notes in (Hazard(events=1, exposure_s=4 * HOUR_S).notes(ended=True), of_an_older_release):
        found = Hazard.resumed(notes)
        assert (found.events, found.exposure_s) == (1, pytest.approx(4 * HOUR_S, abs=1))


def test_slower_steps_beside_an_upload_are_part_of_the_cost() -> None:
    model = SaveCostModel(Hazard(), floor_s=1, ceiling_s=1e9)
    model.blocking_s = 0.1
    model.persist_s = 10.0
    assert model.cost_s == pytest.approx(0.1)
    model.observe_step(1.0, uploading=False)
    model.observe_step(1.25, uploading=True)
    assert model.cost_s == pytest.approx(0.1 + 10.0 * 0.2)


def test_the_interval_keeps_floor_ceiling_and_the_time_of_an_upload() -> None:
    model = SaveCostModel(Hazard(), floor_s=30, ceiling_s=1800)
    assert model.interval_s() == 30
    model.persist_s = 120.0
    assert model.interval_s() == 120
    model.blocking_s = 10_000.0
    assert model.interval_s() == 1800


def test_a_save_follows_the_one_before_while_nothing_is_known_of_evictions_and_it_costs_little() -> None:
    model = SaveCostModel(Hazard(), floor_s=1, ceiling_s=1800)
    model.blocking_s = 0.2
    model.persist_s = 40.0
    assert model.interval_s() == 40, "when the last is durable"
    model.blocking_s = 2.0
    assert model.interval_s() == 2.0 / 0.02
    model.hazard.exposure_s += 20 * HOUR_S
    assert model.interval_s() > 200, "a quiet run saves less often"


@pytest.mark.parametrize(("ended", "evictions"), [(False, 1), (True, 0)])
def test_a_resume_is_an_eviction_unless_the_loop_had_ended_in_order(ended: bool, evictions: int) -> None:
    first = Hazard.resumed({})
    assert first.events == 0
    assert Hazard.resumed(first.notes(ended=ended)).events == evictions
