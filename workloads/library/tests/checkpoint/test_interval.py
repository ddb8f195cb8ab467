"""The interval: simulated optimum, and a hazard that counts quiet time."""

import math
import random

import pytest

from holdfast.checkpoint.cadence import HOUR_S, Hazard, History, SaveCostModel
from holdfast.contract.checkpoint_interval import daly


def simulated_waste(interval_s: float, cost_s: float, mtbf_s: float, seed: int) -> float:
    rng = random.Random(seed)
    useful = total = 0.0
    for _ in range(4000):
        lifetime = rng.expovariate(1 / mtbf_s)
        useful += math.floor(lifetime / (interval_s + cost_s)) * interval_s
        total += lifetime
    return 1 - useful / total


@pytest.mark.parametrize(("cost_s", "mtbf_s"), [(0.5, 4 * HOUR_S), (5, HOUR_S), (30, HOUR_S), (60, 600)])
def test_the_interval_wastes_within_5_percent_of_the_simulated_best(cost_s: float, mtbf_s: float) -> None:
    chosen = daly(cost_s, mtbf_s)
    tried = [chosen * factor for factor in (0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0)]
    best = min(simulated_waste(interval, cost_s, mtbf_s, 1) for interval in tried)
    assert simulated_waste(chosen, cost_s, mtbf_s, 1) <= best * 1.05


def test_time_without_an_eviction_lowers_the_rate_at_that_age_only() -> None:
    hazard = Hazard()
    before = hazard.rate(0), hazard.rate(10 * HOUR_S)
    hazard.observe(0, HOUR_S, evicted=False)
    assert hazard.rate(0) < before[0]
    assert hazard.rate(10 * HOUR_S) == before[1]


def test_the_estimate_finds_the_rate_of_censored_lifetimes() -> None:
    rng = random.Random(3)
    hazard = Hazard()
    for _ in range(3000):
        lifetime, watched = rng.expovariate(1 / (2 * HOUR_S)), rng.uniform(0, HOUR_S)
        hazard.observe(0, min(lifetime, watched), evicted=lifetime < watched)
    assert 1 / hazard.rate(0) == pytest.approx(2 * HOUR_S, rel=0.08)


def test_young_nodes_that_are_taken_more_often_get_shorter_intervals() -> None:
    hazard = Hazard()
    for _ in range(10):
        hazard.observe(0, 0.5 * HOUR_S, evicted=True)
        hazard.observe(6 * HOUR_S, 16 * HOUR_S, evicted=False)
    model = SaveCostModel(hazard, floor_s=1, ceiling_s=1e9)
    model.observe_blocking(2.0)
    assert model.interval_s(0) < model.interval_s(8 * HOUR_S) / 3


def test_a_hazard_survives_its_journey_through_a_checkpoint() -> None:
    hazard = Hazard()
    hazard.observe(0, 4 * HOUR_S, evicted=True)
    assert Hazard.decode(hazard.encode()) == hazard
    assert Hazard.decode({"events": [1.0], "exposure_s": [1.0]}) == Hazard()


def test_slower_steps_beside_an_upload_are_part_of_the_cost() -> None:
    model = SaveCostModel(Hazard(), floor_s=1, ceiling_s=1e9)
    model.observe_blocking(0.1)
    model.observe_upload(10.0)
    assert model.cost_s == pytest.approx(0.1)
    model.observe_step(1.0, uploading=False)
    model.observe_step(1.25, uploading=True)
    assert model.cost_s == pytest.approx(0.1 + 10.0 * 0.2)


def test_the_interval_keeps_floor_ceiling_and_the_time_of_an_upload() -> None:
    model = SaveCostModel(Hazard(), floor_s=30, ceiling_s=1800)
    assert model.interval_s(0) == 30
    model.observe_upload(120.0)
    assert model.interval_s(0) == 120
    model.observe_blocking(10_000.0)
    assert model.interval_s(0) == 1800


def test_a_save_follows_the_one_before_while_nothing_is_known_of_evictions_and_it_costs_little() -> None:
    model = SaveCostModel(Hazard(), floor_s=1, ceiling_s=1800)
    model.observe_blocking(0.2)
    model.observe_upload(40.0)
    assert model.interval_s(0) == 40, "when the last is durable"
    model.observe_blocking(2.0)
    assert model.interval_s(0) == 2.0 / 0.02
    model.hazard.observe(0, 20 * HOUR_S, evicted=False)
    assert model.interval_s(20 * HOUR_S) > 200, "a quiet run saves less often"


@pytest.mark.parametrize(("ended", "evictions"), [(False, 1), (True, 0)])
def test_a_resume_is_an_eviction_unless_the_loop_had_ended_in_order(ended: bool, evictions: int) -> None:
    first = History.resumed({})
    assert sum(first.hazard.events) == 0
    assert sum(History.resumed(first.notes(ended=ended)).hazard.events) == evictions
