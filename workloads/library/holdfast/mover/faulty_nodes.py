"""Replaces Spot nodes whose GPU is broken, or which computed wrong.

Cordons the node, evicts its jobs so that they save, then deletes the Node. Faults are read from
NVIDIA's exporter on each node; wrong results are found by exact gangs, whose pod on the node says
so. Guarantee: only nodes with GKE's Spot label; at most `per_hour` in
any hour, restarts of the mover included, and with 0 nothing is changed. Disruption budgets hold. A
Node is deleted when no pod of a job is left on it, or when all that are left have passed their
grace period.
"""

# Why it is so: infra/decisions/0111, infra/decisions/0205.

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException

from holdfast.clients.api import Api, ApiError, Object
from holdfast.controllers.cluster_objects import Node
from holdfast.controllers.controller_log import get_logger
from holdfast.controllers.event_lines import Line, make_fault_line
from holdfast.mover.cluster_api import write_event
from holdfast.support.values import unix_s
from holdfast.vocabulary.kubernetes import LABEL_NAME
from holdfast.vocabulary.pools import LABEL_GPU_FAULT, LABEL_SPOT
from holdfast.vocabulary.roles import JOB_NAMESPACES, NAMESPACE_SERVING
from holdfast.vocabulary.telemetry import GPU_EXPORTER, GPU_EXPORTER_NAMESPACE, GPU_EXPORTER_PORT

LOG = get_logger("move")
REASON = "GpuFault"
NODES = "/api/v1/nodes"
EVERY_S = 30.0
TIMEOUT_S = 3.0
AT_ONCE = 16
MOST_BYTES = 1_000_000
# NVIDIA's catalog: these faults need a reset of the GPU, or service. The others come from the
# program, or are contained. https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
FATAL_XIDS = frozenset({48, 64, 74, 79, 95, 119})
WRONG_RESULT = "wrong-result"
_SAMPLE = re.compile(r"^DCGM_FI_DEV_(\w+)\{.*\} (\d+)(?:\.0*)?$", re.MULTILINE)


def find_fault(text: str) -> str:
    """Returns the fault in the exporter's answer as a label's value; empty if there is none."""
    for name, value in _SAMPLE.findall(text):
        if name == "XID_ERRORS" and int(value) in FATAL_XIDS:
            return f"xid-{value}"
        if name == "ECC_DBE_VOL_TOTAL" and int(value):
            return "double-bit-error"
        if name == "ROW_REMAP_FAILURE" and int(value):
            return "row-remap-failure"
    return ""


def fetch_metrics(address: str) -> str:
    """Returns the metrics of the exporter at this address; empty if it does not answer.

    Silent nodes are handled elsewhere.
    """
    connection = HTTPConnection(address, GPU_EXPORTER_PORT, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        return response.read(MOST_BYTES).decode(errors="replace")
    except (OSError, HTTPException):
        return ""
    finally:
        connection.close()


@dataclass(slots=True)
class FaultyNodes:
    api: Api
    per_hour: int
    """0: faults are reported, and nothing is changed."""
    fetch: Callable[[str], str] = fetch_metrics
    namespaces: Sequence[str] = (*JOB_NAMESPACES, NAMESPACE_SERVING)
    """Namespaces whose pods are evicted from a node before it is deleted."""
    reported: set[str] = field(default_factory=set)
    """Nodes whose fault was reported."""
    _next_s: float = 0.0
    """Earliest time of the next replacement. A mover that restarts does not know the
    previous one, so it waits a full turn.
    """
    _checked_s: float = 0.0
    _wrong: set[str] = field(default_factory=set)
    """Nodes that computed wrong."""

    def suspect(self, nodes: Iterable[str]) -> None:
        """Adds nodes on which a pod said that it computed wrong."""
        self._wrong |= set(nodes)

    def step(self, nodes: Mapping[str, Node], now_s: float) -> list[Line]:
        """Returns a line for each new fault. `nodes` are the Spot nodes.

        Raises ApiError or Unjudged if the API server does not answer.
        """
        if not nodes or now_s - self._checked_s < EVERY_S:
            return []
        self._checked_s = now_s
        self._next_s = self._next_s or now_s + self._turn_s
        self.reported &= nodes.keys()
        self._wrong &= nodes.keys()
        draining = self._list_draining()
        lines: list[Line] = []
        handled: set[str] = set()
        for name, fault in self._find_faults(nodes):
            if name in draining or name in handled:
                continue
            handled.add(name)
            line = self._handle_fault(name, fault, nodes[name], now_s)
            if line:
                lines.append(line)
        for name in draining:
            self._drain(name, now_s)
        return lines

    @property
    def _turn_s(self) -> float:
        return 3_600 / self.per_hour if self.per_hour else 0.0

    def _list_draining(self) -> dict[str, Object]:
        """Returns the nodes that carry the mark of a fault, by name."""
        selector = f"{LABEL_GPU_FAULT},{LABEL_SPOT}=true"
        nodes: dict[str, Object] = {}
        for node in self.api.items(NODES, labelSelector=selector):
            nodes[node["metadata"]["name"]] = node
        return nodes

    def _find_faults(self, nodes: Mapping[str, Node]) -> Iterable[tuple[str, str]]:
        """Yields node and fault of each faulty node, some with two."""
        addresses = self._find_exporters(nodes)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            texts = list(pool.map(self.fetch, addresses.values()))
        for name, text in zip(addresses, texts, strict=True):
            fault = find_fault(text)
            if fault:
                yield name, fault
        # These come last: a fault that the driver reports says more about the same node.
        for name in sorted(self._wrong):
            yield name, WRONG_RESULT

    def _find_exporters(self, nodes: Mapping[str, Node]) -> dict[str, str]:
        """Returns the addresses of the exporters by node.

        The API server says on which node an exporter runs; its own labels do not count.
        """
        path = f"/api/v1/namespaces/{GPU_EXPORTER_NAMESPACE}/pods"
        selector = f"{LABEL_NAME}={GPU_EXPORTER}"
        addresses: dict[str, str] = {}
        for pod in self.api.items(path, labelSelector=selector):
            name = pod["spec"].get("nodeName")
            address = pod["status"].get("podIP")
            if name in nodes and address:
                addresses[name] = address
        return addresses

    def _handle_fault(self, name: str, fault: str, node: Node, now_s: float) -> Line | None:
        """Marks a node for replacement if its turn has come, else reports the fault once."""
        replaces = bool(self.per_hour) and now_s >= self._next_s
        if not replaces:
            waits_for_turn = bool(self.per_hour)
            if waits_for_turn or name in self.reported:
                return None
        if replaces:
            mark = {
                "metadata": {"labels": {LABEL_GPU_FAULT: fault}},
                "spec": {"unschedulable": True},
            }
            self.api.merge(f"{NODES}/{name}", mark)
            self._next_s = now_s + self._turn_s
            consequence = "its jobs are evicted, then it is deleted"
        else:
            consequence = "it is left alone, as the cap is 0"
        self.reported.add(name)
        # The kubelet writes events about its node in the same way, with the name as the uid.
        involved = {
            "apiVersion": "v1",
            "kind": "Node",
            "namespace": "",
            "name": name,
            "uid": name,
        }
        reason = f"the GPU is broken ({fault})"
        if fault == WRONG_RESULT:
            reason = "a gang's step had other gradients here than on other nodes"
        message = f"{reason}: {consequence}"
        write_event(self.api, involved, REASON, message, now_s, kind="Warning")
        LOG.warning("%s: %s", name, message)
        answer = "replaced" if replaces else "reported"
        return make_fault_line(name, node, now_s, fault, answer)

    def _drain(self, name: str, now_s: float) -> None:
        """Evicts the pods of a node, and deletes it once none of them needs it."""
        needs_node = False
        for namespace in self.namespaces:
            for pod in self._list_pods(namespace, name):
                if self._evict(pod, now_s):
                    needs_node = True
        if needs_node:
            return
        try:
            self.api.delete(f"{NODES}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
        LOG.warning("%s is deleted: it is broken", name)

    def _list_pods(self, namespace: str, node: str) -> list[Object]:
        path = f"/api/v1/namespaces/{namespace}/pods"
        pods: list[Object] = []
        for pod in self.api.items(path, fieldSelector=f"spec.nodeName={node}"):
            if pod["status"].get("phase") not in ("Failed", "Succeeded"):
                pods.append(pod)
        return pods

    def _evict(self, pod: Object, now_s: float) -> bool:
        """Evicts a pod that is not terminating yet. Returns whether it still needs its node."""
        meta = pod["metadata"]
        deletion = meta.get("deletionTimestamp")
        if deletion:
            return unix_s(deletion) > now_s
        try:
            self.api.evict(meta["namespace"], meta["name"])
        except ApiError as error:
            LOG.warning("%s is not evicted yet: %s", meta["name"], error)
            return error.status != 404
        return True
