"""Tests which gangs on queued flex-start may be queued again."""

from typing import Any

import pytest

from holdfast.mover.requeue import requeue
from holdfast.support.values import rfc3339
from holdfast.vocabulary.capacity import ANNOTATION_REQUEUES_FOR, LABEL_REQUEUES
from holdfast.vocabulary.kubernetes import KUEUE_REVOKED

NOW = 1_790_000_000.0


class Cluster:
    """Fakes the API server with JobSets that Kueue has stopped, as their nodes had ended."""

    def __init__(self, limits: dict[str, str]) -> None:
        """`limits` maps the name of a JobSet to the seconds in which it may be queued again."""
        self.limits = limits
        self.patched: list[str] = []

    def items(self, path: str, **query: str) -> list[Any]:
        kind = path.rpartition("/")[2]
        make = _make_workload if kind == "workloads" else _make_job
        return [make(name, limit) for name, limit in self.limits.items()]

    def patch(self, path: str, ops: Any) -> None:
        self.patched.append(path.rpartition("/")[2])

    def delete(self, path: str) -> None:
        pass

    def create(self, path: str, body: Any) -> None:
        pass


def _make_job(name: str, limit: str) -> Any:
    meta = {
        "name": name,
        "namespace": "training",
        "uid": name,
        "resourceVersion": "1",
        "creationTimestamp": rfc3339(NOW - 600),
        "labels": {LABEL_REQUEUES: "2"},
        "annotations": {ANNOTATION_REQUEUES_FOR: limit},
    }
    return {"metadata": meta, "spec": {"suspend": True}}


def _make_workload(name: str, _: str) -> Any:
    owner = {"uid": name, "controller": True}
    revoked = [
        {"type": "Evicted", "status": "True", "reason": KUEUE_REVOKED},
        {"type": "Admitted", "status": "False"},
    ]
    return {
        "metadata": {"name": name, "namespace": "training", "ownerReferences": [owner]},
        "spec": {"active": False},
        "status": {"conditions": revoked},
    }


@pytest.mark.parametrize("digits", [400, 5_000])
def test_a_very_long_limit_spoils_no_pass(digits: int) -> None:
    cluster = Cluster({"bad": "9" * digits, "late": "599", "good": "601"})
    api: Any = cluster
    assert (
        requeue(
            api,
            {},
            NOW,
            ["training"],
        )
        == 2
    )
    assert cluster.patched == ["bad", "good"]
