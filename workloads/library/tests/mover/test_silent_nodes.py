"""Tests which pods of a silent node are ended, and in which order."""

from typing import Any

import pytest

from holdfast.mover.silent_nodes import end_pods
from holdfast.vocabulary.kubernetes import EXPENDABLE
from workloads.library.tests.mover.server import Server

DUE = "2026-09-21T15:00:00Z"
NOW = 1_790_002_800.0


def pod(
    name: str = "p", *, node: str = "n", due: str = DUE, phase: str = "Running", **annotations: str
) -> Any:
    meta = {
        "name": name,
        "namespace": "training",
        "uid": f"u-{name}",
        "resourceVersion": "7",
    }
    meta |= {"annotations": EXPENDABLE | annotations} | ({"deletionTimestamp": due} if due else {})
    return {
        "metadata": meta,
        "spec": {"nodeName": node},
        "status": {"phase": phase},
    }


def end(server: Any, nodes: tuple[str, ...] = ("n",)) -> list[str]:
    return end_pods(server, nodes, NOW, ("training",))


@pytest.mark.parametrize(("phase", "first"), [("Running", ["patch pods/p/status"]), ("Failed", [])])
def test_a_pod_past_its_grace_period_fails_and_is_deleted(phase: str, first: list[str]) -> None:
    server = Server([pod(phase=phase)])
    assert end(server) == ["p"]
    assert server.requests == [*first, "kill pods/p", "NodeSilent p"]


@pytest.mark.parametrize(
    "spared",
    [
        pod(due=""),
        pod(due="2026-09-21T15:00:01Z"),
        pod(node="other"),
        pod(**dict.fromkeys(EXPENDABLE, "false")),
    ],
    ids=["not-asked-to-go", "within-its-grace-period", "on-another-node", "not-expendable"],
)
def test_every_other_pod_is_left_alone(spared: Any) -> None:
    server = Server([spared])
    assert end(server) == []
    assert server.requests == []
    assert end_pods(None, [], NOW) == [], "without a silent node nothing is read"  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [404, 409, 422])
def test_a_changed_pod_does_not_stop_the_others(status: int) -> None:
    server = Server([pod(), pod("q")], refuse={"patch": status})
    assert end(server) == []
    assert server.requests == ["patch pods/p/status", "patch pods/q/status"]
