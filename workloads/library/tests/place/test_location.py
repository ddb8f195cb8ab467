"""Where data lies and may lie, in the answer of `place`."""

import json

import pytest
from typer.testing import CliRunner

from holdfast.contract.errors import InputError
from holdfast.place import ask, prices
from holdfast.place.cli import app
from holdfast.place.job import Job
from holdfast.place.location import NO_MOVE, Location, Move, parse_within

A100_80 = "nvidia-a100-80gb"
ASKED = Job(accelerator=A100_80, gpus=1, hours=10)
BELIEF = ask.Belief(churn=0.05)
CHEAPEST = "us-east5"


def lying_in(region: str, **changes: float) -> Location:
    stated = {"gib": 1_000.0, "usd_per_gib": 0.02, "mib_per_s": 1_024 / 3.6} | changes
    return Location(region=region, **stated)  # type: ignore[arg-type]


def test_data_goes_to_no_region_in_which_it_may_not_lie() -> None:
    known = prices.load().regions(A100_80)
    for within in ("europe", "us-central1", "us-central1, EUROPE-"):
        location = Location(within=parse_within(within))
        found = ask.answer(ASKED, BELIEF, location=location)
        allowed = {region for region in known if location.allows(region)}
        assert {found.region, *(name for name, _, _ in found.elsewhere)} == allowed
        assert CHEAPEST not in allowed
    assert not Location(within=("us-east",)).allows("us-east5"), "a name ends at a dash"
    with pytest.raises(InputError, match="data residency"):
        ask.answer(ASKED, BELIEF, region=CHEAPEST, location=Location(within=("europe",)))
    with pytest.raises(InputError, match="--within"):
        parse_within("europe,,us")


def test_a_region_is_as_dear_as_its_price_and_the_way_there() -> None:
    free = ask.answer(ASKED, BELIEF, region=CHEAPEST)
    paid = ask.answer(ASKED, BELIEF, region=CHEAPEST, location=lying_in("us-central1"))
    assert (paid.move.usd, paid.move.hours) == pytest.approx((20.0, 1.0))
    for before, after in zip(free.options, paid.options, strict=True):
        assert after.mean_usd == pytest.approx(before.mean_usd + 20.0)
        assert after.finish_at(50) == pytest.approx(before.finish_at(50) + 1.0)
    # What is saved elsewhere is less than what the way costs: the job stays with its data.
    assert ask.answer(ASKED, BELIEF).region == CHEAPEST
    stayed = ask.answer(ASKED, BELIEF, location=lying_in("us-central1"))
    assert (stayed.region, stayed.move.usd) == ("us-central1", 0.0)
    assert ask.answer(ASKED, BELIEF, location=lying_in("us-central1", gib=1.0)).region == CHEAPEST


def test_the_way_takes_its_time_out_of_the_deadline() -> None:
    dated = Job(accelerator=A100_80, gpus=1, hours=10, deadline_h=14)
    slow = lying_in("us-central1", usd_per_gib=0.0, mib_per_s=1_024 / 18.0)  # five hours
    assert ask.answer(dated, BELIEF, location=slow).region == "us-central1"
    with pytest.raises(InputError, match="impossible deadline"):
        ask.answer(dated, BELIEF, region=CHEAPEST, location=slow)
    two_hours = lying_in("us-central1", usd_per_gib=0.0, mib_per_s=1_024 / 7.2)
    found = ask.answer(dated, BELIEF, region=CHEAPEST, location=two_hours)
    assert found.chosen.finish_at(95) <= 14


def test_what_the_manifests_do_is_priced_with_the_way_too() -> None:
    dated = Job(accelerator="nvidia-tesla-a100", gpus=8, hours=40, deadline_h=72)
    found = ask.answer(dated, ask.Belief(), region="europe-west4")
    assert found.emitted is not found.chosen
    # Not among the rows, so it is simulated for itself.
    near, far = (
        ask.emitted(dated, found.world, [], found.chosen, move) for move in (NO_MOVE, Move(usd=20.0, hours=1.0))
    )
    assert (far.mean_usd - near.mean_usd, far.finish_at(50) - near.finish_at(50)) == pytest.approx((20.0, 1.0))


def test_place_states_where_the_bucket_has_to_be() -> None:
    stated = ["--data-in", "us-central1", "--data-gib", "1000", "--transfer-usd", "0.02", "--transfer-rate", "400"]
    asked = ["place", "--gpu", "a100-80", "--hours", "10", "--region", CHEAPEST, *stated]
    out = CliRunner().invoke(app, asked).stdout
    assert f"first copy the data from us-central1 to a bucket in {CHEAPEST}: $20 and 0.7 h" in out
    body = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert body["data"] == {"in": "us-central1", "move_usd": 20.0, "move_hours": pytest.approx(0.711, abs=0.001)}


def test_a_transfer_without_its_price_or_rate_is_refused_not_free() -> None:
    for stated in ({"region": "us-central1"}, {"gib": 5.0}, {"region": "us-central1", "gib": 5.0, "mib_per_s": 9.0}):
        with pytest.raises(InputError, match="data in another region"):
            Location(**stated)  # type: ignore[arg-type]
    for wrong in ({"gib": -1.0}, {"usd_per_gib": float("nan")}, {"mib_per_s": 0.0}):
        with pytest.raises(InputError, match=r"--data-gib|--transfer"):
            lying_in("us-central1", **wrong)
