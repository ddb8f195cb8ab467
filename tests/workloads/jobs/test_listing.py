"""What event lines add to a job, and how counts are shown."""

from dataclasses import replace

from monitoring.ledger.events import parse
from monitoring.ledger.job_summary import job_summaries
from tests.monitoring import sample
from workloads.jobs.explain import progress_text
from workloads.jobs.job_snapshot import when
from workloads.jobs.losses import Count
from workloads.jobs.show import counted


def test_kubernetes_time_is_read_as_utc() -> None:
    assert when("1970-01-01T00:01:00Z") == 60.0


def test_a_count_that_is_a_lower_bound_shows_it() -> None:
    assert (counted(Count(3)), counted(Count(3, exact=False))) == ("3", "3+")


def test_a_job_that_runs_shows_its_progress() -> None:
    assert progress_text(None, 0) == ""
    lines = sorted(sample.killed_and_restored("job"), key=lambda line: line["t"])
    summary = job_summaries(parse(sample.encoded(lines)).events)["job"]
    assert progress_text(summary, sample.EPOCH + 86.4) == "useful 27.6 % of its time, step 60, saved 40 s ago"
    assert progress_text(replace(summary, useful_ratio=None, last_commit_s=None), 0) == "step 60"
