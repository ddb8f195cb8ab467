"""Where the data of a job may lie, in the answer of `place`."""

import pytest

from holdfast.contract.errors import InputError
from holdfast.place import ask, prices
from holdfast.place.job import Job
from workloads.library.tests.place.worlds import A100, A100_80

ASKED = Job(accelerator=A100_80, gpus=1, hours=10)
BELIEF = ask.Belief(churn=0.05)
CHEAPEST = "us-east5"


@pytest.mark.parametrize(
    ("region", "beginnings"),
    [("europe", ("europe-",)), ("us-central1", ("us-central1",)), ("us-central1, EUROPE", ("us-central1", "europe-"))],
)
def test_a_job_goes_to_no_region_in_which_its_data_may_not_lie(region: str, beginnings: tuple[str, ...]) -> None:
    found = ask.answer(ASKED, BELIEF, region)
    allowed = {name for name in prices.load().regions(A100_80) if name.startswith(beginnings)}
    assert {found.region, *(each.region for each in found.elsewhere)} == allowed
    assert CHEAPEST not in allowed


def test_without_a_region_the_cheapest_is_taken_and_the_others_are_named() -> None:
    found = ask.answer(ASKED, BELIEF)
    assert found.region == CHEAPEST
    assert {each.region for each in found.elsewhere} == set(prices.load().regions(A100_80)) - {CHEAPEST}
    assert [each.usd for each in found.elsewhere] == sorted(each.usd for each in found.elsewhere)


@pytest.mark.parametrize("region", ["mars-north1", "us-east", "europe,,us", "u"])
def test_no_such_region_gets_those_that_have_prices(region: str) -> None:
    with pytest.raises(InputError, match="--region") as refused:
        ask.answer(Job(accelerator=A100, gpus=1, hours=1), BELIEF, region)
    assert "europe-west4, me-west1, us-central1" in refused.value.allowed
