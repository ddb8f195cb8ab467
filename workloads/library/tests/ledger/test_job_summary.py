"""One answer about a job, whichever command asks."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.ledger.events import parse
from holdfast.ledger.job_ledger import job_ledgers
from holdfast.ledger.job_summary import JobSummary, job_summaries, read_job_summaries
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH, Line


def summarize(rows: list[Line]) -> dict[str, JobSummary]:
    return job_summaries(parse(sample.encoded(sorted(rows, key=lambda row: row["t"]))).events)


def test_a_job_that_was_set_back_stands_where_it_is_now() -> None:
    found = summarize(sample.killed_and_restored("job"))["job"]
    assert f"{found.useful_ratio:.1%}" == "27.6%"
    assert (found.step, found.lost, [each.lost_steps for each in found.recoveries]) == (60, 55, [55])
    assert found.recovered_after_s == pytest.approx((92.4,))
    assert found.last_commit_s == EPOCH + 46
    assert found.saved_age_s(EPOCH + 66) == 20


def test_the_report_gives_the_same_share_as_the_summary(tmp_path: Path) -> None:
    sample.write(tmp_path / "job.jsonl", sorted(sample.killed_and_restored("job"), key=lambda row: row["t"]))
    result = CliRunner().invoke(app, ["report", "--events", str(tmp_path), "--out", str(tmp_path / "r.html"), "--json"])
    [row] = json.loads(result.stdout)["jobs"]
    assert row["goodput"] == pytest.approx(read_job_summaries(tmp_path)["job"].useful_ratio, abs=1e-4)


def test_orderly_exits_are_counted_for_training_and_for_batch() -> None:
    rows = [*sample.training("t", kills=sample.KILLS), *sample.batch("b", kills=4)]
    found = summarize(rows)
    assert (found["t"].orderly_exits, found["b"].orderly_exits) == (3, 2)
    assert found["t"].step == 300
    assert found["b"].step is None
    assert found["b"].last_commit_s is None


def test_what_no_line_shows_is_none() -> None:
    found = summarize([sample.line(EPOCH, "start", rank=0)])["job"]
    assert (found.useful_ratio, found.step, found.last_commit_s, found.saved_age_s(EPOCH)) == (None, None, None, None)
    assert (found.lost, found.recoveries, found.orderly_exits) == (0, (), 0)


@pytest.mark.parametrize("kills", [(), sample.KILLS])
def test_every_figure_is_that_of_the_ledger(kills: tuple[tuple[float, str], ...]) -> None:
    rows = [*sample.training("t", kills=kills), *sample.batch("b", kills=len(kills))]
    found = summarize(rows)
    for ledger in job_ledgers(parse(sample.encoded(sorted(rows, key=lambda row: row["t"]))).events):
        one = found[ledger.job]
        assert (one.useful_ratio, one.lost, one.recoveries) == (ledger.goodput, ledger.account.lost, ledger.recoveries)
