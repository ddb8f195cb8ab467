import json
from pathlib import Path

import numpy as np
import pytest

from holdfast.contract.capacity import Placement
from holdfast.contract.errors import InputError
from holdfast.place import advice, ask, hazard, outages, policies, prices, traces, zones
from holdfast.place.job import Job
from holdfast.place.runs import runs_of
from holdfast.place.simulate import simulate

H100 = "nvidia-h100-80gb"


def ups(*rows: str) -> np.ndarray:
    return np.array([[tick == "1" for tick in row] for row in rows])


def test_a_job_stays_until_its_zone_ends_and_goes_on_in_another() -> None:
    found = zones.follow(ups("1110000", "0011110"), 1.0)
    assert found.up.tolist() == [True] * 6 + [False]
    assert found.moved is not None
    assert np.flatnonzero(found.moved).tolist() == [3]


def test_without_any_zone_the_job_waits_and_its_return_is_no_move() -> None:
    found = zones.follow(ups("1001", "0000"), 1.0)
    assert found.up.tolist() == [True, False, False, True]
    assert found.moved is not None
    assert not found.moved.any()


def test_of_several_zones_the_one_that_has_lasted_longest_is_taken() -> None:
    found = zones.follow(ups("11100000", "00111111", "00011000"), 1.0)
    assert found.moved is not None
    assert np.flatnonzero(found.moved).tolist() == [3]


def test_a_move_is_an_eviction_with_a_restart_and_no_wait() -> None:
    trace = zones.follow(ups("111000000000", "001111111111"), 1.0)
    runs = runs_of(1, work_h=6.0, restart_h=0.5, spot_usd=1.0, path=np.zeros(1, int))
    got = simulate(runs, trace.paths(), policies.WAIT)
    assert got.evictions[0] == 1
    assert got.finish_h[0] == pytest.approx(6.0 + 2 * 0.5)


def test_foresight_moves_no_more_often() -> None:
    up = np.random.default_rng(4).random((5, 3_000)) < 0.9
    blind, seeing = (zones.follow(up, 1.0, foresight=each).moved for each in (False, True))
    assert blind is not None
    assert seeing is not None
    assert seeing.sum() < blind.sum()


@pytest.mark.parametrize(("gang", "most"), [(8, 36.0), (16, 36.0)])
def test_free_choice_of_the_recorded_zones_costs_half_of_one_zone(gang: int, most: float) -> None:
    up = np.stack([counts >= gang for counts in outages.record().values()])
    alone = [share(traces.Trace(name="one", gap_h=1 / 6, up=each)) for each in up]
    free = share(zones.follow(up, 1 / 6))
    assert free < most
    assert free < 0.55 * float(np.mean(alone))


def share(trace: traces.Trace) -> float:
    """Per cent of on-demand for 48 h of work in 70 h under the patient policy, at the H100's price ratio."""
    offset = np.random.default_rng(1).uniform(0, trace.hours, 200)
    runs = runs_of(200, work_h=48, restart_h=0.2, deadline_h=70, spot_usd=0.305, on_demand_usd=1.0,
                   interval_h=0.3, checkpoint_h=0.01, path=np.zeros(200, int), offset_h=offset)  # fmt: skip
    got = simulate(runs, trace.paths(), policies.PATIENT)
    assert np.all(got.finish_h <= 70 + 1e-6)
    return float(got.usd.mean() / 48 * 100)


def test_place_offers_any_zone_where_several_are_recorded() -> None:
    world = advice.World(prices=prices.load(), churn=hazard.prior(H100))
    rows = advice.options(Job(accelerator=H100, gpus=64, hours=20, deadline_h=60), world, "us-east4")
    free = [o for o in rows if o.policy.endswith(", any zone")]
    assert [o.placement for o in free] == [Placement.SPOT, Placement.HYBRID]
    plain = next(o for o in rows if o.policy == "wait for Spot")
    assert free[0].finish_at(95) < plain.finish_at(95)
    assert not any(
        o.policy.endswith("any zone")
        for o in advice.options(Job(accelerator=H100, gpus=64, hours=20), world, "europe-west4")
    )


def test_recorded_zones_are_joined_on_request(tmp_path: Path) -> None:
    for name, data in (("a", [1, 1, 0, 0] * 50), ("b", [0, 0, 1, 1] * 50)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"metadata": {"gap_seconds": 3600}, "data": data}))
    asked = Job(accelerator=H100, gpus=8, hours=20)
    with pytest.raises(InputError, match="inverse"):  # each other's inverse: one zone or two, nobody can know
        ask.answer(asked, ask.Belief(traces=tmp_path, any_zone=True), "us-east4")
    (tmp_path / "b.json").write_text(json.dumps({"metadata": {"gap_seconds": 3600}, "data": [0, 1, 1, 1] * 50}))
    found = ask.answer(asked, ask.Belief(traces=tmp_path, any_zone=True), "us-east4")
    by = {o.policy: o for o in found.options}
    assert by["wait for Spot, any zone"].finish_at(50) < by["wait for Spot"].finish_at(50)


def test_zones_of_different_steps_are_refused() -> None:
    one = traces.Trace(name="one", gap_h=1.0, up=np.ones(5, bool))
    with pytest.raises(InputError, match="different steps"):
        zones.together([one, traces.Trace(name="two", gap_h=0.5, up=np.ones(5, bool))])
