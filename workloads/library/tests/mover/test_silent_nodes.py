"""Which pods of a silent node are ended, and in which order."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.clients.api import ApiError
from holdfast.contract.kubernetes import EXPENDABLE
from holdfast.contract.pools import UNREACHABLE
from holdfast.exporter.objects import read_node
from holdfast.mover.silent_nodes import end_pods
from workloads.library.tests.exporter.test_cluster import node

DUE, NOW = "2026-09-21T15:00:00Z", 1_790_002_800.0


def pod(name: str = "p", *, node: str = "n", due: str = DUE, phase: str = "Running", **annotations: str) -> Any:
    meta = {"name": name, "namespace": "training", "uid": f"u-{name}", "resourceVersion": "7"}
    meta |= {"annotations": EXPENDABLE | annotations} | ({"deletionTimestamp": due} if due else {})
    return {"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": phase}}


@dataclass
class Server:
    pods: list[Any]
    refuse: dict[str, int] = field(default_factory=dict[str, int])
    asked: list[str] = field(default_factory=list[str])

    def items(self, path: str) -> list[Any]:
        return self.pods

    def patch(self, path: str, operations: list[Any]) -> None:
        self._ask("patch", path)
        assert operations[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}

    def delete(self, path: str, gracePeriodSeconds: int) -> None:
        assert gracePeriodSeconds == 0
        self._ask("delete", path)

    def create(self, path: str, body: Any) -> None:
        self._ask(body["reason"], path)

    def _ask(self, verb: str, path: str) -> None:
        name = path.removeprefix("/api/v1/namespaces/training/")
        self.asked.append(f"{verb} {name}")
        if verb in self.refuse:
            raise ApiError(self.refuse[verb], "no")


def ended(server: Any, nodes: tuple[str, ...] = ("n",)) -> list[str]:
    return end_pods(server, nodes, NOW, ("training",))


def test_a_pod_past_its_grace_period_fails_first_and_is_deleted_then() -> None:
    server = Server([pod()])
    assert ended(server) == ["p"]
    assert server.asked == ["patch pods/p/status", "delete pods/p", "NodeSilent events"]


@pytest.mark.parametrize(
    "spared",
    [
        pod(due=""),
        pod(due="2026-09-21T15:00:01Z"),
        pod(node="other"),
        pod(**{key: "false" for key in EXPENDABLE}),
    ],
    ids=["not-asked-to-go", "within-its-grace-period", "on-another-node", "not-expendable"],
)
def test_every_other_pod_is_left_alone(spared: Any) -> None:
    server = Server([spared])
    assert ended(server) == [] and server.asked == []


def test_without_a_silent_node_nothing_is_asked() -> None:
    assert end_pods(None, [], NOW) == []  # type: ignore[arg-type]


def test_one_that_ended_by_itself_is_only_deleted() -> None:
    server = Server([pod(phase="Failed")])
    assert ended(server) == ["p"] and server.asked[0] == "delete pods/p"


@pytest.mark.parametrize("status", [404, 409, 422])
def test_a_pod_that_changed_meanwhile_stops_no_other(status: int) -> None:
    server = Server([pod(), pod("q")], refuse={"patch": status})
    assert ended(server) == []
    assert server.asked == ["patch pods/p/status", "patch pods/q/status"]


def test_the_taint_of_the_node_controller_says_that_a_node_is_silent() -> None:
    taint = {"key": UNREACHABLE, "effect": "NoExecute"}
    body = node("n")
    assert not read_node(body).silent
    body["spec"] = {"taints": [taint]}
    assert read_node(body).silent
