"""What event lines add to a job, and how counts are shown."""

from dataclasses import replace

import pytest

from holdfast.clients.api import Object
from holdfast.exporter.queues import read_workload
from holdfast.jobs.cluster_snapshot import ClusterSnapshot
from holdfast.jobs.endings import Count
from holdfast.jobs.explain import progress_text
from holdfast.jobs.job_snapshot import JobSnapshot, held_since_s, when
from holdfast.jobs.queues import held
from holdfast.jobs.show import counted
from holdfast.ledger.events import parse
from holdfast.ledger.job_summary import job_summaries
from workloads.library.tests import sample

LATER = "2026-01-01T00:50:00Z"


def test_a_count_that_is_a_lower_bound_shows_it() -> None:
    assert (counted(Count(3)), counted(Count(3, exact=False))) == ("3", "3+")


def test_a_job_that_runs_shows_its_progress() -> None:
    assert progress_text(None, 0) == ""
    lines = sorted(sample.killed_and_restored("job"), key=lambda line: line["t"])
    summary = job_summaries(parse(sample.encoded(lines)).events)["job"]
    assert progress_text(summary, sample.EPOCH + 86.4) == "useful 27.6 % of its time, step 60, saved 40 s ago"
    assert progress_text(replace(summary, useful_ratio=None, last_commit_s=None), 0) == "step 60"


@pytest.mark.parametrize(
    "conditions",
    [
        [],
        [{"type": "QuotaReserved", "status": "False", "lastTransitionTime": LATER}],
        [{"type": "Evicted", "status": "True", "lastTransitionTime": LATER}],
        [{"type": "Evicted", "status": "False", "lastTransitionTime": LATER}],
    ],
    ids=["new", "quota", "evicted", "started again and held"],
)
def test_a_job_in_the_queue_waits_as_long_as_the_exporter_counts(conditions: list[Object]) -> None:
    meta = {"name": "w", "namespace": "n", "uid": "w", "creationTimestamp": "2026-01-01T00:00:00Z"}
    workload = {"metadata": meta, "spec": {"queueName": "team"}, "status": {"conditions": conditions}}
    job = JobSnapshot(body={"kind": "Job", "metadata": meta, "spec": {}}, pods=[], workload=workload)
    assert held_since_s(job) == read_workload(workload).since_s
    taken_s = when("2026-01-01T02:00:00Z")
    queued = held(job, ClusterSnapshot(taken_s=taken_s, workloads=[workload]))
    assert queued is not None
    assert queued.position == f"1 of 1 waiting in queue team, for {taken_s - read_workload(workload).since_s:.0f} s"


def test_an_admitted_job_is_not_held() -> None:
    admitted = {"metadata": {}, "status": {"conditions": [{"type": "Admitted", "status": "True"}]}}
    assert held_since_s(JobSnapshot(body={}, pods=[], workload=admitted)) is None
