"""How often a job was taken down, and how often it fell: past losses count, and what cannot be known is marked."""

import pytest

from holdfast.clients.api import Object
from holdfast.jobs.cause import Count, losses
from holdfast.jobs.job_snapshot import JobSnapshot, crashed, exit_code

START, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"
IGNORE = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}


def pod(phase: str, code: int = 0, disrupted: bool = False, made: str = START, **annotations: int) -> Object:
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}] if disrupted else []
    containers = [{"name": "main", "state": {"terminated": {"exitCode": code}}}]
    prefix = "batch.kubernetes.io/job-"
    counts = {prefix + key.replace("_", "-"): str(value) for key, value in annotations.items()}
    meta = {"creationTimestamp": made, "annotations": counts}
    return {"metadata": meta, "status": {"phase": phase, "conditions": conditions, "containerStatuses": containers}}


def plain_job(pods: list[Object], status: Object | None = None, **spec: object) -> JobSnapshot:
    meta = {"name": "j", "namespace": "n", "uid": "u"}
    body = {"kind": "Job", "metadata": meta, "spec": spec, "status": {"startTime": START} | (status or {})}
    return JobSnapshot(body=body, pods=pods)


def made(count: int) -> Object:
    """The Job controller's event, which Kubernetes counts up."""
    return {"metadata": {"creationTimestamp": START}, "involvedObject": {"uid": "u"}, "reason": "SuccessfulCreate", "count": count}  # fmt: skip


def counted(job: JobSnapshot, events: list[Object] | None = None, notices: int = 0) -> tuple[str, str]:
    found = losses(job, events or [], notices)
    return str(found.evicted), str(found.crashed)


def test_an_eviction_is_no_crash_whatever_the_exit_code() -> None:
    pods = [pod("Failed", 143, True), pod("Failed", 1, True), pod("Failed", 70), pod("Succeeded")]
    job = plain_job(pods, backoffLimitPerIndex=0)
    assert counted(job) == ("2", "1")
    assert [exit_code(p) for p in crashed(job)] == [70]


def test_losses_of_an_index_stay_counted_when_its_pods_are_gone_with_the_nodes() -> None:
    counts = {"index_ignored_failure_count": 3, "index_failure_count": 1}
    gone = [pod("Running", completion_index=0, **counts), pod("Running", completion_index=1)]
    assert counted(plain_job(gone, backoffLimitPerIndex=0)) == ("3", "1")
    there = [
        pod("Failed", 143, True, completion_index=0),
        pod("Failed", 143, True, completion_index=0, index_ignored_failure_count=1),
    ]
    assert counted(plain_job(there, backoffLimitPerIndex=0))[0] == "2", "not yet replaced, and nothing counted twice"
    third = pod("Running", completion_index=0, index_ignored_failure_count=2)
    assert counted(plain_job([*there, third], backoffLimitPerIndex=0))[0] == "2"


def test_a_jobset_counts_only_restarts_that_the_platform_caused() -> None:
    status = {"restarts": 5, "restartsCountTowardsMax": 2}
    found = losses(JobSnapshot(body={"kind": "JobSet", "status": status}, pods=[]))
    assert (found.evicted, found.crashed) == (Count(3), Count(2))


def test_a_plain_job_whose_first_pods_still_run_has_lost_nothing() -> None:
    job = plain_job([pod("Running"), pod("Running")], podFailurePolicy=IGNORE, parallelism=2)
    assert counted(job, [made(2)]) == ("0", "0")


@pytest.mark.parametrize(
    ("events", "notices", "evicted"),
    [([made(9)], 0, "at least 7"), ([], 4, "at least 4"), ([], 0, "at least 0")],
    ids=["by events", "by its own lines", "by nothing"],
)
def test_a_plain_job_counts_at_least_how_often_its_vanished_pods_were_taken(
    events: list[Object], notices: int, evicted: str
) -> None:
    pods = [pod("Running", made=LATER), pod("Running", made=LATER)]
    assert counted(plain_job(pods, podFailurePolicy=IGNORE, parallelism=2), events, notices) == (evicted, "0")


def test_charged_failures_of_a_plain_job_are_exact_though_their_pods_are_gone() -> None:
    job = plain_job([pod("Running", made=LATER)], {"failed": 3, "succeeded": 1}, podFailurePolicy=IGNORE, parallelism=1)
    assert counted(job, [made(6)]) == ("at least 1", "3")


def test_without_a_policy_only_pods_that_are_left_separate_evictions_from_crashes() -> None:
    left = [pod("Failed", 143, True), pod("Failed", 1), pod("Running")]
    assert counted(plain_job(left, {"failed": 2}, parallelism=1)) == ("1", "1")
    assert counted(plain_job(left, {"failed": 5}, parallelism=1)) == ("at least 1", "at least 1")
