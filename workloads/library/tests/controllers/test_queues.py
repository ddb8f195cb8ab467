"""Tests that jobs without a pod are followed, in Kueue and in Google's queue."""

from typing import Any

import pytest

from holdfast.clients.api import Object
from holdfast.controllers.cluster import Cluster
from holdfast.controllers.watch import QUEUED
from holdfast.ledger.event_schema import refusal
from holdfast.vocabulary.kubernetes import KUEUE_INADMISSIBLE
from holdfast.vocabulary.pools import LABEL_ACCELERATOR
from workloads.library.tests.controllers.test_cluster import NOW, values

CREATED = "2026-11-21T00:00:00Z"
LATER = "2026-11-21T00:30:00Z"


def workload(
    uid: str = "w", queue: str = "spot", *, active: bool = True, **conditions: str
) -> Object:
    """Makes a Workload as Kueue 0.19 writes it.

    Conditions map a type to its status, or to the reason of a false one.
    """
    pod = {"spec": {"nodeSelector": {LABEL_ACCELERATOR: "nvidia-l4"}}}
    rows = []
    for kind, value in conditions.items():
        rows.append(
            {
                "type": kind,
                "status": str(value == "True"),
                "reason": value,
                "lastTransitionTime": LATER,
            }
        )
    flavors = [
        {
            "name": "workers",
            "flavors": {"cpu": "cpu-flavor", "nvidia.com/gpu": "spot-l4"},
        }
    ]
    reserved = {"admission": {"clusterQueue": "q", "podSetAssignments": flavors}}
    return {
        "metadata": {
            "uid": uid,
            "namespace": "training",
            "name": uid,
            "creationTimestamp": CREATED,
        },
        "spec": {
            "queueName": queue,
            "active": active,
            "podSets": [{"name": "workers", "template": pod}],
        },
        "status": {"conditions": rows}
        | (reserved if conditions.get("QuotaReserved") == "True" else {}),
    }


def request(**conditions: str) -> Object:
    rows: list[Object] = []
    for kind, value in conditions.items():
        rows.append({"type": kind, "status": value})
    return {
        "metadata": {
            "uid": "r",
            "namespace": "training",
            "name": "r",
        },
        "status": {"conditions": rows},
    }


def watch(*changes: tuple[str, Object], kind: int = 0) -> Cluster:
    cluster = Cluster()
    for change, body in changes:
        QUEUED[kind].apply(cluster)(change, body)
    return cluster


def waits(body: Object) -> dict[tuple[str, ...], float]:
    """Returns (accelerator, flavor, queue, reason) -> seconds."""
    return values(watch(("ADDED", body)), "queue_wait_seconds")


HOUR = 3600.0


@pytest.mark.parametrize(
    ("conditions", "flavor", "reason", "seconds"),
    [
        ({}, "none", "quota", HOUR),
        ({"QuotaReserved": "WaitingForQuota"}, "none", "quota", HOUR),
        *(
            ({"QuotaReserved": reason}, "none", "inadmissible", HOUR)
            for reason in sorted(KUEUE_INADMISSIBLE)
        ),
        ({"QuotaReserved": "True"}, "spot-l4", "admission-check", HOUR),
        # since its eviction
        ({"QuotaReserved": "Pending", "Evicted": "True"}, "none", "quota", HOUR / 2),
    ],
)
def test_a_job_without_a_pod_waits_by_queue_accelerator_and_reason(
    conditions: dict[str, str],
    flavor: str,
    reason: str,
    seconds: float,
) -> None:
    assert waits(workload(**conditions)) == {("nvidia-l4", flavor, "spot", reason): seconds}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (workload(active=False), {("nvidia-l4", "none", "spot", "stopped"): HOUR}),
        (workload(QuotaReserved="True", Admitted="True"), {}),
        (workload(QuotaReserved="True", Finished="True"), {}),
        # Another version of Kueue: the job waits, and nothing breaks.
        ({"metadata": workload()["metadata"]}, {("none", "none", "none", "quota"): HOUR}),
    ],
    ids=["stopped", "admitted", "finished", "without spec and status"],
)
def test_stopped_admitted_and_finished_jobs_need_no_quota(body: Any, expected: Any) -> None:
    assert waits(body) == expected


def test_a_queue_reports_pending_and_started_jobs_to_zero() -> None:
    running = workload("a", QuotaReserved="True", Admitted="True")
    cluster = watch(
        ("ADDED", running), ("ADDED", workload("b")), ("ADDED", workload("c", active=False))
    )
    assert values(cluster, "queue_pending_workloads") == {("spot",): 1}
    assert values(cluster, "queue_started_workloads") == {("spot",): 1}
    cluster.queues.workload("MODIFIED", workload("b", QuotaReserved="True", Admitted="True"))
    assert values(cluster, "queue_pending_workloads") == {("spot",): 0}
    cluster.forget_all_but("workloads", {"b"})  # what vanished while nothing watched
    assert set(cluster.queues.workloads) == {"b"}
    cluster.queues.workload("DELETED", workload("b"))
    assert not cluster.queues.workloads


def test_an_admission_is_written_once_with_its_wait() -> None:
    waiting = workload("a", QuotaReserved="Pending")
    started = workload("a", QuotaReserved="True", Admitted="True")
    cluster = watch(("ADDED", waiting), ("MODIFIED", started), ("MODIFIED", started))
    (line,) = cluster.lines(NOW)
    assert refusal(line) == "" and line["event"] == "admitted"
    fields = {
        "seconds": HOUR / 2,
        "queue": "spot",
        "flavor": "spot-l4",
        "accelerator": "nvidia-l4",
    }
    assert fields.items() <= line.items() and cluster.lines(NOW) == []
    assert watch(("ADDED", started)).lines(NOW) == [], "the previous exporter has written it"


def test_a_job_in_an_admission_check_has_passed_its_queue() -> None:
    cluster = watch(("ADDED", workload("a", QuotaReserved="True")))
    assert values(cluster, "queue_pending_workloads")["spot",] == 0
    assert values(cluster, "queue_started_workloads")["spot",] == 1


def test_a_lost_request_counts_once_if_it_was_watched() -> None:
    watched = watch(
        ("ADDED", request(Accepted="True")), *[("MODIFIED", request(Failed="True"))] * 2, kind=1
    )
    assert values(watched, "provisioning_requests_lost_total")["Failed",] == 1
    unwatched = watch(
        ("ADDED", request(BookingExpired="True")),
        ("MODIFIED", request(BookingExpired="True")),
        kind=1,
    )
    assert set(values(unwatched, "provisioning_requests_lost_total").values()) == {0}


def test_queues_and_accelerators_are_known_ones_or_other() -> None:
    """Anybody who may create a job names its queue and its accelerator."""
    changes: list[tuple[str, Object]] = []
    for n in range(50):
        body = workload(f"w-{n}", f"queue-{n}")
        template = body["spec"]["podSets"][0]["template"]
        template["spec"]["nodeSelector"][LABEL_ACCELERATOR] = f"gpu-{n}"
        changes.append(("ADDED", body))
    cluster = watch(*changes, ("ADDED", workload("known")))
    assert values(cluster, "queue_wait_seconds").keys() == {
        ("nvidia-l4", "none", "spot", "quota"),
        ("other", "none", "other", "quota"),
    }
    assert values(cluster, "queue_pending_workloads") == {("spot",): 1, ("other",): 50}
