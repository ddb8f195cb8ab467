"""What is paid for a term beside what is paid by the hour."""

import json

import pytest
from typer.testing import CliRunner

from holdfast.contract.errors import InputError
from holdfast.place import commitment
from holdfast.place.cli import app
from holdfast.place.job import Job

PLACE = ["place", "--gpu", "a100", "--gpus", "8", "--hours", "40", "--region", "us-central1"]


def test_a_term_is_paid_whole_and_as_often_as_the_job_needs_it() -> None:
    month = commitment.parse("1.50/30d")
    assert month is not None
    for hours, terms in ((40, 1), (719, 1), (720, 2), (1_500, 3)):
        job = Job(accelerator="nvidia-tesla-a100", gpus=8, hours=hours)
        assert (month.terms(job), month.usd(job)) == (terms, 1.5 * 8 * 720 * terms)


def test_place_states_the_hours_of_work_from_which_a_term_pays() -> None:
    body = json.loads(CliRunner().invoke(app, [*PLACE, "--committed", "1.50/30d", "--json"]).stdout)
    chosen = next(o for o in body["options"] if o["placement"] == body["chosen"])
    found = body["committed"]
    assert found["usd"] == 1.5 * 8 * 720
    # At so many hours in the term both cost the same.
    assert chosen["usd"]["mean"] / 40 * found["even_hours"] == pytest.approx(found["usd"])
    text = CliRunner().invoke(app, [*PLACE, "--committed", "1.50/30d"]).stdout
    assert f"from {found['even_hours']:,.0f} h of such work in each 720 h" in text
    assert "even if the GPUs never rest" in CliRunner().invoke(app, [*PLACE, "--committed", "9/365d"]).stdout
    assert json.loads(CliRunner().invoke(app, [*PLACE, "--json"]).stdout)["committed"] is None


@pytest.mark.parametrize(
    "wrong", ["1.50", "/30d", "free/30d", "1.50/30", "0/30d", "1.5/2h", "nan/30d", "1.5/none", "-1/30d"]
)
def test_what_is_no_price_with_a_term_is_refused(wrong: str) -> None:
    with pytest.raises(InputError, match="committed"):
        commitment.parse(wrong)
