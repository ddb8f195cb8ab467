"""Tests which nodes are replaced, how many in an hour, and what is written about each."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.controllers.cluster_objects import Node, parse_node
from holdfast.mover.faulty_nodes import FaultyNodes, find_fault
from holdfast.vocabulary.kubernetes import LABEL_NAME
from holdfast.vocabulary.pools import LABEL_GPU_FAULT, LABEL_SPOT
from workloads.library.tests.controllers.test_cluster import node
from workloads.library.tests.exporter.fake_source import read_jobs
from workloads.library.tests.mover.server import Server

NOW = 1_790_002_800.0
LABELS = 'gpu="0",UUID="GPU-1",Hostname="n",err_msg="x} 79"'
BROKEN = f"# HELP x y\nDCGM_FI_DEV_XID_ERRORS{{{LABELS}}} 79\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (BROKEN, "xid-79"),
        (f"DCGM_FI_DEV_XID_ERRORS{{{LABELS}}} 48.000000", "xid-48"),
        (f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{LABELS}}} 2", "double-bit-error"),
        (f"DCGM_FI_DEV_ROW_REMAP_FAILURE{{{LABELS}}} 1", "row-remap-failure"),
        (f"DCGM_FI_DEV_XID_ERRORS{{{LABELS}}} 31", ""),
        (f"DCGM_FI_DEV_XID_ERRORS{{{LABELS}}} 0\nDCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{LABELS}}} 0", ""),
        (
            f"DCGM_FI_DEV_XID_ERRORS{{{LABELS}}} NaN\nDCGM_FI_DEV_THERMAL_VIOLATION{{{LABELS}}} 9",
            "",
        ),
        ("<html>", ""),
    ],
)
def test_only_faults_that_need_a_gpu_reset_count(text: str, fault: str) -> None:
    assert find_fault(text) == fault


@dataclass
class Nodes(Server):
    """Two nodes with an exporter each, and pods on them."""

    marked: dict[str, str] = field(default_factory=dict)

    def items(self, path: str, **query: str) -> list[Any]:
        if path == "/api/v1/nodes":
            assert query == {"labelSelector": f"{LABEL_GPU_FAULT},{LABEL_SPOT}=true"}
            return [{"metadata": {"name": name}} for name in self.marked]
        if path.endswith("gpu-metrics/pods"):
            assert query == {"labelSelector": f"{LABEL_NAME}=dcgm-exporter"}
            exporters = []
            for name in ("a", "b"):
                exporters.append({"spec": {"nodeName": name}, "status": {"podIP": name}})
            return exporters
        place = (path.split("/")[4], query["fieldSelector"].removeprefix("spec.nodeName="))
        pods = []
        for pod in self.pods:
            if (pod["metadata"]["namespace"], pod["spec"]["nodeName"]) == place:
                pods.append(pod)
        return pods

    def merge(self, path: str, change: Any) -> None:
        self.ask("cordon", path)
        assert change["spec"] == {"unschedulable": True}
        self.marked[path.rpartition("/")[2]] = change["metadata"]["labels"][LABEL_GPU_FAULT]

    def delete(self, path: str, **query: object) -> None:
        super().delete(path)
        del self.marked[path.rpartition("/")[2]]


def spot(*names: str) -> dict[str, Node]:
    return {name: parse_node(node(name)) for name in names}


def faulty(server: Any, per_hour: int, texts: dict[str, str] | None = None) -> FaultyNodes:
    """Makes the subject; by default node a is broken, and b is sound."""
    text_by_address = texts or {"a": BROKEN}
    return FaultyNodes(server, per_hour, lambda address: text_by_address.get(address, ""))


def pod(
    name: str,
    *,
    due: str = "",
    phase: str = "Running",
    namespace: str = "training",
) -> Any:
    meta = {"name": name, "namespace": namespace} | ({"deletionTimestamp": due} if due else {})
    return {
        "metadata": meta,
        "spec": {"nodeName": "a"},
        "status": {"phase": phase},
    }


def test_by_default_a_fault_is_reported_once_on_spot_nodes_only() -> None:
    server = Nodes()
    reporting = faulty(server, 0)
    first_lines = reporting.step(spot("a", "b"), NOW)
    later_lines = reporting.step(spot("a", "b"), NOW + 60)
    (line,) = first_lines
    assert line["node"] == "a"
    assert line["fault"] == "xid-79"
    assert line["answer"] == "reported"
    assert later_lines == []
    assert server.requests == ["GpuFault a"]
    exporter = read_jobs(*first_lines)
    counts = []
    for s in exporter.samples(NOW, {}):
        if s.metric == "gpu_faults_total":
            counts.append(s)
    labels = {
        "pool": parse_node(node("a")).pool,
        "fault": "xid-79",
        "answer": "reported",
    }
    (count,) = counts
    assert count.value == 1
    assert dict(count.labels) == labels
    assert not exporter.refused
    replacing = faulty(server, 60)
    for after_s in (0, 60, 120):
        assert replacing.step(spot("b"), NOW + after_s) == []
    assert server.requests == ["GpuFault a"]


def test_the_cap_holds_from_the_mover_start() -> None:
    server = Nodes()
    replacing = faulty(server, 2, {"a": BROKEN, "b": BROKEN})
    cordoned = []
    for after_s in range(0, 7_200, 600):
        replacing.step(spot("a", "b"), NOW + after_s)
        for request in server.requests:
            if request.startswith("cordon"):
                cordoned.append(after_s)
        server.requests.clear()
    assert cordoned == [1_800, 3_600, 5_400]


def test_jobs_are_evicted_before_the_node_is_deleted() -> None:
    leaving = pod("q", due="2026-09-21T15:00:31Z")
    server = Nodes(
        [
            pod("p"),
            pod("web", namespace="serving"),
            pod("over", phase="Failed"),
            leaving,
        ]
    )
    server.marked["a"] = "xid-79"
    replacing = faulty(server, 1)
    replacing.step(spot("a"), NOW)
    assert server.requests == ["evict p", "evict web"]
    server.pods = [leaving]
    replacing.step(spot("a"), NOW + 30)
    assert server.requests[2:] == []
    replacing.step(spot("a"), NOW + 60)  # its kubelet does not answer any more
    assert server.requests[2:] == ["delete a"]


def test_a_disruption_budget_keeps_the_node() -> None:
    server = Nodes([pod("p")], refuse={"evict": 429})
    server.marked["a"] = "xid-79"
    replacing = faulty(server, 1)
    for after_s in (0, 30, 60):
        replacing.step(spot("a"), NOW + after_s)
    assert server.requests == ["evict p"] * 3


@pytest.mark.parametrize("per_hour", [0, 60])
def test_a_node_that_computed_wrong_is_handled_as_a_broken_gpu(per_hour: int) -> None:
    server = Nodes()
    watching = faulty(server, per_hour, {"a": ""})
    watching.step(spot("a", "b"), NOW)
    # Only Spot nodes are ever touched: this one is not among them.
    watching.suspect(["a", "on-demand-1"])
    lines = watching.step(spot("a", "b"), NOW + 61)
    assert [(line["node"], line["fault"]) for line in lines] == [("a", "wrong-result")]
    assert watching.step(spot("a", "b"), NOW + 122) == []
    expected = "replaced" if per_hour else "reported"
    assert lines[0]["answer"] == expected
    cordons = [request for request in server.requests if request.startswith("cordon")]
    assert cordons == (["cordon a"] if per_hour else [])
    exporter = read_jobs(*lines)
    assert not exporter.refused
