"""Elastic gangs under the simulator: closed forms, recorded clusters, deadlines, and what `place` makes of a range."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.contract import node_range
from holdfast.contract.capacity import Placement
from holdfast.contract.errors import InputError
from holdfast.place import ask, choose, elastic, gangs, hazard, prices
from holdfast.place.belief import World
from holdfast.place.elastic import Counts, Gang
from holdfast.place.job import Job
from holdfast.place.traces import Recorded, load
from workloads.library.tests.bench import placement_gangs

RECORDED = Path(__file__).with_name("recorded")
ASKED = Job(accelerator="nvidia-tesla-a100", gpus=8, min_nodes=4, max_nodes=8, hours=40)


def counts(*spells: tuple[float, int]) -> Counts:
    """Nodes for so many hours each; the last for good."""
    edges = np.cumsum([hours for hours, _ in spells])[None, :-1]
    return Counts(edges_h=edges, count=np.array([[count for _, count in spells]]))


def world() -> World:
    return World(prices=prices.load(), churn=hazard.prior(ASKED.accelerator))


def test_the_simulator_keeps_to_the_closed_forms_within_two_percent() -> None:
    assert abs(placement_gangs.apart(8, 0.1, 1, 0.25)) < 0.02
    assert abs(placement_gangs.apart(8, 0.1, 2, 0.25)) < 0.02
    assert abs(placement_gangs.rigid_apart(8, 0.1, 0.25)) < 0.02


def test_a_gang_short_of_a_node_goes_on_with_its_share_and_pays_for_those_that_are_there() -> None:
    gang = Gang(nodes=8, least=4, shards=840, restart_h=0.0, shrink_h=0.0, grow_h=0.0)
    there = counts((2, 8), (4, 6), (math.inf, 8))
    found = elastic.simulate(gang, there, work_h=8.0, spot_usd=8.0, on_demand_usd=80.0)
    # 2 h of work, then 4 h at three quarters, then 3 h: 9 h, of which 4 were billed for 6 nodes.
    assert found.finish_h[0] == pytest.approx(9.0)
    assert found.usd[0] == pytest.approx(2 * 8 + 4 * 6 + 3 * 8)
    assert found.evictions[0] == 1


def test_below_the_least_it_stops_holds_for_a_minute_and_starts_anew() -> None:
    gang = Gang(nodes=4, least=2, shards=12, restart_h=0.5, interval_h=0.2, shrink_h=0.0, grow_h=0.0)
    found = elastic.simulate(gang, counts((2.5, 4), (3.0, 1), (math.inf, 4)), work_h=4.0, spot_usd=4.0)
    # 2 h of work less half an interval; 3 h of nothing, of which one node is billed for a minute; 0.5 h and 2.1 h.
    assert found.finish_h[0] == pytest.approx(2.5 + 3.0 + 0.5 + 2.1)
    assert found.usd[0] == pytest.approx(2.5 * 4 + 1 / 60 + 2.6 * 4)


def test_no_feasible_deadline_is_missed_where_on_demand_is_granted() -> None:
    rng = np.random.default_rng(3)
    drawn = elastic.drawn(
        rng, rng.uniform(0.1, 3, 400), units=8, nodes=8, first_h=rng.exponential(3, (400, 8)),
        waits_h=rng.exponential(2, (400, 8, 40)),
    )  # fmt: skip
    gang = Gang(nodes=8, least=4, shards=48, restart_h=0.1, interval_h=0.3, checkpoint_h=0.01)
    for deadline in (10.1, 11.0, 15.0):
        kept = elastic.simulate(gang, drawn, work_h=10.0, deadline_h=deadline, in_time=True)
        assert kept.finish_h.max() <= deadline + 1e-6
        assert np.all(kept.on_demand_h + kept.spot_h > 0)


def test_an_elastic_gang_costs_less_and_ends_sooner_than_the_rigid_one_and_more_so_the_larger_it_is() -> None:
    saved: list[float] = []
    for nodes in (2, 8, 16):
        job = replace(ASKED, gpus=nodes, min_nodes=nodes // 2, max_nodes=nodes)
        rows = {o.policy: o for o in gangs.options(job, world(), "us-central1")}
        rigid, ours = rows["wait for Spot"], rows[f"elastic {nodes // 2}..{nodes}, wait for Spot"]
        assert ours.finish_at(50) <= rigid.finish_at(50)
        saved.append(1 - ours.mean_usd / rigid.mean_usd)
    assert saved == sorted(saved) and saved[0] > 0


def test_a_year_is_priced_as_well_as_a_day() -> None:
    day, year = (
        gangs.options(replace(ASKED, hours=hours), world(), "us-central1")[-1].mean_usd / hours for hours in (48, 8760)
    )
    assert year == pytest.approx(day, rel=0.1)


def test_recorded_counts_are_replayed_and_traces_of_losses_refused() -> None:
    trace = load(RECORDED / "gcp-a100-us-east1-b.json", machines=64)
    job = replace(ASKED, gpus=64, min_nodes=32, max_nodes=64, hours=20)
    found = gangs.options(job, replace(world(), recorded=Recorded.of([trace])), "us-central1")
    rigid, ours = found[2], found[-1]
    # All 64 were there 9 % of the time: the rigid gang waits, the elastic one hardly notices.
    assert rigid.refused or rigid.finish_at(50) > 2 * ours.finish_at(50)
    assert ours.finish_at(95) < 30
    gone = replace(trace, counts=None)
    lost = gangs.options(job, replace(world(), recorded=Recorded.of([gone])), "us-central1")[-1]
    assert "how many machines were lost" in lost.refused


def test_the_churn_believed_of_an_a100_is_that_of_the_public_record() -> None:
    data = np.array(json.loads((RECORDED / "gcp-a100-us-east1-b.json").read_text())["data"])
    per_hour = np.maximum(-np.diff(data), 0).sum() / (data.sum() / 60)
    assert hazard.prior("nvidia-tesla-a100").per_hour == pytest.approx(per_hour, rel=0.02)


def test_the_answer_to_a_range_of_nodes_states_the_elastic_gang_and_where_it_stops_paying() -> None:
    answer = ask.answer(replace(ASKED, deadline_h=90), ask.Belief(churn=0.02), "us-central1")
    assert answer.chosen.policy.startswith("elastic 4..8")
    assert answer.chosen.placement in (Placement.SPOT, Placement.HYBRID)
    rigid = replace(ASKED, min_nodes=0, max_nodes=0, offered=frozenset({"a2-highgpu-1g"}))
    assert answer.limits is not None
    flip = choose.limits(rigid, answer.world, "us-central1")
    assert flip is not None and answer.limits.churn_per_hour > flip.churn_per_hour


def test_a_rigid_gang_is_shown_what_it_would_be_as_an_elastic_one_and_nothing_is_chosen_for_it() -> None:
    rigid = replace(ASKED, min_nodes=0, max_nodes=0, deadline_h=90, offered=frozenset({"a2-highgpu-1g"}))
    answer = ask.answer(rigid, ask.Belief(), "us-central1")
    rows = {row.policy: row for row in answer.options}
    patient, in_time = answer.as_elastic
    assert patient.policy == "elastic 4..8, wait for Spot" and patient.policy not in rows
    assert patient.mean_usd < rows["wait for Spot"].mean_usd
    assert patient.finish_at(50) < rows["wait for Spot"].finish_at(50)
    assert in_time.mean_usd < rows["Spot, on-demand in time"].mean_usd and in_time.late == 0.0
    ranged = ask.answer(replace(rigid, min_nodes=4, max_nodes=8), ask.Belief(), "us-central1").options
    assert [row.mean_usd for row in ranged[-2:]] == [patient.mean_usd, in_time.mean_usd], "as with --nodes 4..8"


@pytest.mark.parametrize("other", [{"gpus": 2}, {"batch": True}, {"checkpoint_h": math.inf}])
def test_a_job_that_gains_little_or_cannot_be_elastic_is_shown_nothing(other: dict[str, object]) -> None:
    rigid = replace(ASKED, min_nodes=0, max_nodes=0, offered=frozenset({"a2-highgpu-1g"}))
    job = replace(rigid, **other)  # pyright: ignore[reportArgumentType]
    assert gangs.beside(rigid, world(), "us-central1")
    assert not gangs.beside(job, world(), "us-central1")


@pytest.mark.parametrize("wrong", [{"batch": True}, {"checkpoint_h": math.inf}, {"min_nodes": 8}, {"gpus": 12}])
def test_what_cannot_be_elastic_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="nodes"):
        replace(ASKED, **wrong)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("wrong", ["8..4", "4..4", "0..3", "4-8", "", True, 0, 2000, 1.5, None, "4..99999"])
def test_one_grammar_of_nodes_refuses(wrong: object) -> None:
    with pytest.raises(InputError, match="nodes"):
        node_range.parse(wrong, 1000)
