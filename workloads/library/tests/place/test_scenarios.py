"""Tests the scenarios of Spot: the record, its worst week, and a wait that the user knows."""

import json

import numpy as np
import pytest

from holdfast.place import scenarios
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
    results = scenarios.list_scenarios(accelerator, gang)
    assert [scenario.name for scenario in results] == [AT_ONCE, RECORDED, WORST_WEEK]
    first = [float(scenario.waits.first_h.mean()) for scenario in results]
    assert first[0] == 0.0 and first == sorted(first) and first[2] > 1.2 * first[1]
    assert not results[0].waits.later_h.any()


def test_larger_gangs_wait_longer_and_more_than_sixteen_nodes_as_sixteen() -> None:
    recorded = [scenarios.list_scenarios(H100, gang)[1].waits for gang in (1, 8, 16, 64)]
    waits = [float(waits_of_gang.first_h.mean()) for waits_of_gang in recorded]
    assert waits[0] < waits[1] < waits[2] == waits[3]
    # The 59 % of the record, without the zone that never had eight at once.
    assert float(np.mean(recorded[1].first_h <= 0.0)) * 12 / 13 == pytest.approx(0.59, abs=0.01)


def test_other_gpus_get_the_better_half_and_say_so() -> None:
    recorded = scenarios.list_scenarios(H100, 8)
    assumed = scenarios.list_scenarios(A100, 8)
    assert len(assumed[1].waits.first_h) == len(recorded[1].waits.first_h) / 2 == 6
    assert assumed[1].waits.first_h.mean() < recorded[1].waits.first_h.mean()
    assert all("assumed for this GPU" in scenario.basis for scenario in assumed[1:])
    assert not any("assumed" in scenario.basis for scenario in recorded)


def test_worst_week_is_one_week_and_one_zone_with_some_starts() -> None:
    worst = scenarios.list_scenarios(H100, 16)[2]
    words = worst.basis.split()
    assert words[:3] == ["one", "week", "of"] and worst.waits.first_h.shape[0] == 1
    halves = [half >= 16 for half in np.array_split(scenarios.record()[words[3].rstrip(":")], 2)]
    assert f"{min(float(h.mean()) for h in halves):.0%}" in worst.basis


def test_a_known_wait_replaces_the_record() -> None:
    at_once, median = scenarios.list_scenarios(H100, 8, 2.0)
    assert (at_once.name, median.name) == (AT_ONCE, STATED)
    assert np.median(median.waits.first_h) == pytest.approx(2.0, rel=0.01)
    assert median.waits.later_h.mean() == pytest.approx(6.0, rel=0.01)


def test_waits_are_drawn_as_recorded_and_a_gang_stays_in_one_zone() -> None:
    waits = scenarios.list_scenarios(H100, 8)[1].waits
    samples = waits.draw(np.random.default_rng(1), 40_000, 2)
    assert samples.mean(axis=0) == pytest.approx(
        [waits.first_h.mean(), waits.later_h.mean()], rel=0.05
    )
    gang, single = (scenarios.list_scenarios(H100, nodes)[1].waits for nodes in (2, 1))
    spread = []
    for waits_of_job in (gang, single):
        spread.append(np.std(waits_of_job.draw(np.random.default_rng(2), 3_000, 40).mean(axis=1)))
    assert spread[0] > 2 * spread[1]


def test_the_record_states_where_it_comes_from_and_under_which_licence() -> None:
    body = json.loads(scenarios.RECORD.read_text())
    assert (
        body["licence"] == "Apache-2.0" and "skynomad-artifact" in body["source"] and body["notice"]
    )
    lengths = {len(counts) for counts in scenarios.record().values()}
    assert len(lengths) == 1
    assert lengths.pop() * body["gap_seconds"] == pytest.approx(14.68 * 86_400, rel=0.01)
