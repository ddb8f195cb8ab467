"""Tests elastic gangs: closed forms, recorded clusters, deadlines, and the answer to a range."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.place import advice, elastic, preemption_rate, recommendation
from holdfast.place.elastic import Counts, Gang
from holdfast.place.job import Job
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import Placement
from workloads.library.tests.bench.placements import gangs as placement_gangs

RECORDED = Path(__file__).with_name("recorded")
QUESTION = Job(
    accelerator="nvidia-tesla-a100",
    gpus=8,
    min_nodes=4,
    max_nodes=8,
    hours=40,
)


def counts(*spells: tuple[float, int]) -> Counts:
    """Returns the number of nodes in spells of hours; the last one has no end."""
    hours, nodes = zip(*spells, strict=True)
    edges = np.cumsum(hours)[None, :-1]
    return Counts(edges_h=edges, count=np.array([nodes]))


def test_the_simulator_keeps_to_the_closed_forms_within_two_percent() -> None:
    assert abs(placement_gangs.apart(8, 0.1, 1, 0.25)) < 0.02
    assert abs(placement_gangs.apart(8, 0.1, 2, 0.25)) < 0.02
    assert abs(placement_gangs.rigid_apart(8, 0.1, 0.25)) < 0.02


def test_gang_with_missing_nodes_works_and_pays_in_proportion() -> None:
    gang = Gang(
        nodes=8,
        least=4,
        shards=840,
        restart_h=0.0,
        shrink_h=0.0,
        grow_h=0.0,
    )
    available = counts((2, 8), (4, 6), (math.inf, 8))
    outcome = elastic.simulate(gang, available, work_h=8.0, spot_usd=8.0)
    # 2 h of work, then 4 h at three quarters, then 3 h: 9 h, of which 4 were billed for 6 nodes.
    assert outcome.finish_h[0] == pytest.approx(9.0)
    assert outcome.usd[0] == pytest.approx(2 * 8 + 4 * 6 + 3 * 8)
    assert outcome.evictions[0] == 1


def test_below_the_least_it_stops_holds_for_a_minute_and_starts_again() -> None:
    gang = Gang(
        nodes=4,
        least=2,
        shards=12,
        restart_h=0.5,
        interval_h=0.2,
        shrink_h=0.0,
        grow_h=0.0,
    )
    outcome = elastic.simulate(
        gang,
        counts((2.5, 4), (3.0, 1), (math.inf, 4)),
        work_h=4.0,
        spot_usd=4.0,
    )
    # 2 h of work less half an interval; 3 h of nothing, of which one node is billed for a minute;
    # 0.5 h and 2.1 h.
    assert outcome.finish_h[0] == pytest.approx(2.5 + 3.0 + 0.5 + 2.1)
    assert outcome.usd[0] == pytest.approx(2.5 * 4 + 1 / 60 + 2.6 * 4)


def test_elastic_gang_saves_more_the_larger_it_is() -> None:
    saved: list[float] = []
    for nodes in (2, 8, 32):
        job = replace(
            QUESTION,
            hours=10,
            gpus=nodes,
            min_nodes=nodes // 2,
            max_nodes=nodes,
        )
        rows = {}
        for o in advice.options(job, recommendation.make_world(job), "us-central1"):
            rows[o.policy] = o
        rigid_option = rows["wait for Spot"]
        elastic_option = rows[f"elastic {nodes // 2}..{nodes}, wait for Spot"]
        assert elastic_option.finish_at(50) <= rigid_option.finish_at(50)
        saved.append(1 - elastic_option.mean_usd / rigid_option.mean_usd)
    assert saved == sorted(saved)
    assert saved[0] > 0


def test_a_year_is_priced_as_well_as_a_day() -> None:

    def price_hour(hours: float) -> float:
        question = replace(QUESTION, hours=hours)
        options = advice.options(question, recommendation.make_world(QUESTION), "us-central1")
        return options[-1].mean_usd / hours

    day = price_hour(48)
    year = price_hour(8760)
    assert year == pytest.approx(day, rel=0.1)


def test_prior_churn_matches_the_public_a100_record() -> None:
    data = np.array(json.loads((RECORDED / "gcp-a100-us-east1-b.json").read_text())["data"])
    per_hour = np.maximum(-np.diff(data), 0).sum() / (data.sum() / 60)
    assert preemption_rate.prior("nvidia-tesla-a100").per_hour == pytest.approx(per_hour, rel=0.02)


def test_elastic_gang_is_recommended_unless_it_may_miss_the_deadline() -> None:
    answer = recommendation.answer(
        QUESTION, recommendation.make_world(QUESTION, "0.02"), "me-west1"
    )
    assert answer.recommended.policy == "elastic 4..8, wait for Spot"
    assert answer.recommended.placement == Placement.SPOT
    assert answer.flip is None
    assert "the gang is elastic" in answer.reason
    dated = replace(QUESTION, deadline_h=45)
    rows = recommendation.answer(dated, recommendation.make_world(QUESTION), "us-central1").options
    by_policy = {}
    for option in reversed(rows):
        by_policy[option.policy] = option
    row = by_policy[answer.recommended.policy]
    assert row.late > 0.5 > row.cases[0].late
    assert row not in recommendation.select_in_time(dated, rows)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": True},
        {"checkpoint_h": math.inf},
        {"min_nodes": 8},
        {"gpus": 12},
    ],
)
def test_what_cannot_be_elastic_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="nodes"):
        replace(QUESTION, **wrong)  # pyright: ignore[reportArgumentType]
