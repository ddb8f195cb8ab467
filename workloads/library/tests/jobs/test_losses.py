"""How often a job was taken down, and how often it fell: past losses count, and what cannot be known is marked."""

import pytest

from holdfast.clients.api import Object
from holdfast.jobs.cause import losses
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


INDEXED = {"backoffLimitPerIndex": 0}
CHARGED = {"index_ignored_failure_count": 3, "index_failure_count": 1}
TAKEN = [
    pod("Failed", 143, True, completion_index=0),
    pod("Failed", 143, True, completion_index=0, index_ignored_failure_count=1),
]
RUNNING = [pod("Running"), pod("Running")]
LATE = [pod("Running", made=LATER), pod("Running", made=LATER)]
LEFT = [pod("Failed", 143, True), pod("Failed", 1), pod("Running")]
PLAIN = {"podFailurePolicy": IGNORE, "parallelism": 2}


@pytest.mark.parametrize(
    ("job", "events", "notices", "expected"),
    [
        (plain_job([pod("Running", completion_index=0, **CHARGED), pod("Running", completion_index=1)], **INDEXED), [], 0, ("3", "1")),
        (plain_job(TAKEN, **INDEXED), [], 0, ("2", "0")),
        (plain_job([*TAKEN, pod("Running", completion_index=0, index_ignored_failure_count=2)], **INDEXED), [], 0, ("2", "0")),
        (plain_job(RUNNING, **PLAIN), [made(2)], 0, ("0", "0")),
        (plain_job(LATE, **PLAIN), [made(9)], 0, ("at least 7", "0")),
        (plain_job(LATE, **PLAIN), [], 4, ("at least 4", "0")),
        (plain_job(LATE, **PLAIN), [], 0, ("at least 0", "0")),
        (plain_job(LATE[:1], {"failed": 3, "succeeded": 1}, podFailurePolicy=IGNORE, parallelism=1), [made(6)], 0, ("at least 1", "3")),
        (plain_job(LEFT, {"failed": 2}, parallelism=1), [], 0, ("1", "1")),
        (plain_job(LEFT, {"failed": 5}, parallelism=1), [], 0, ("at least 1", "at least 1")),
        (JobSnapshot(body={"kind": "JobSet", "status": {"restarts": 5, "restartsCountTowardsMax": 2}}, pods=[]), [], 0, ("3", "2")),
    ],
    ids=[
        "an index whose pods are gone with the nodes", "not yet replaced", "replaced, and nothing counted twice",
        "the first pods still run", "vanished, by events", "vanished, by its own lines", "vanished, by nothing",
        "charged failures are exact", "no policy, all pods are left", "no policy, some are gone", "a JobSet's restarts",
    ],
)  # fmt: skip
def test_losses_are_counted_past_ones_too_and_what_is_a_lower_bound_says_so(
    job: JobSnapshot, events: list[Object], notices: int, expected: tuple[str, str]
) -> None:
    assert counted(job, events, notices) == expected
