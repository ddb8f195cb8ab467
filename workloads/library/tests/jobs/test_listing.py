"""What event lines add to a job, and how counts are shown."""

from dataclasses import replace

import pytest

from holdfast.clients.api import Object
from holdfast.exporter.queues import read_workload
from holdfast.jobs.cause import Count
from holdfast.jobs.cluster_snapshot import ClusterSnapshot
from holdfast.jobs.explain import in_place_text, progress_text
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


def sharded(*phases: str) -> JobSnapshot:
    """A gang of eight GPUs a node; `phases`: of its pods by place, empty: there is none."""
    launcher = {"command": ["train", "ranks", "--sharded"], "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    spec = {"parallelism": len(phases), "template": {"spec": {"containers": [launcher]}}}
    meta = {"name": "w", "namespace": "n", "uid": "w", "creationTimestamp": "2026-01-01T00:00:00Z"}
    pods = [
        {
            "metadata": meta | {"annotations": {"batch.kubernetes.io/job-completion-index": str(place)}},
            "status": {"phase": phase, "conditions": []},
        }
        for place, phase in enumerate(phases)
        if phase
    ]
    return JobSnapshot(body={"kind": "Job", "metadata": meta, "spec": spec}, pods=pods)


def test_a_sharded_gang_says_for_which_node_it_waits_since_when_and_what_that_costs() -> None:
    job, now = sharded("Running", "Running", "Running", "Pending"), when("2026-01-01T12:30:00Z")
    lost = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "2026-01-01T12:04:09Z"}
    taken = job.pods[3] | {"status": {"phase": "Failed", "conditions": [lost]}}
    job.pods[3]["metadata"] = job.pods[3]["metadata"] | {"creationTimestamp": "2026-01-01T12:04:19Z"}
    job.pods.append(taken)
    waits = "3 nodes wait in place for node 3 since 12:04 UTC, which costs 24 GPU-hours an hour"
    assert in_place_text(job, now) == waits
    assert in_place_text(job, now, 3.0) == f"{waits} ($9.00)"
    assert "since 2026-01-01 12:04 UTC" in in_place_text(job, now + 86_400)


@pytest.mark.parametrize(
    ("phases", "command", "said"),
    [
        (("Running", "Running"), "--sharded", ""),
        (("Pending", "Pending"), "--sharded", ""),
        (("Running", "Succeeded"), "--sharded", ""),
        (("Running", "Pending"), "train.py", ""),
        (("Running", ""), "--sharded", "1 node waits in place for node 1, which costs 8 GPU-hours an hour"),
    ],
    ids=["all are there", "none waits for the other", "one is done", "a rigid gang", "one is missing"],
)
def test_only_a_sharded_gang_that_lacks_a_node_waits_in_place(phases: tuple[str, ...], command: str, said: str) -> None:
    job = sharded(*phases)
    job.pod_spec["containers"][0]["command"] = [command]
    assert in_place_text(job, 0) == said
