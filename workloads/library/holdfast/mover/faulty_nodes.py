"""Replaces Spot nodes whose GPU is broken: cordons, evicts the jobs so that they save, deletes the
Node.

Faults are read from NVIDIA's exporter of each node. Guarantee: only nodes with GKE's Spot label; at
most `per_hour` in any hour, restarts of the mover included, and with 0 nothing is changed.
Disruption budgets hold. A Node is deleted when no pod of a job is left on it, or when each that is
left is past its grace period.
"""

# Why it is so: infra/decisions/0111.

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException

from holdfast.clients.api import Api, ApiError, Object
from holdfast.controllers import event_lines
from holdfast.controllers.cluster_objects import Node
from holdfast.controllers.controller_log import logger
from holdfast.mover.cluster_api import event
from holdfast.support.values import unix_s
from holdfast.vocabulary.kubernetes import LABEL_NAME
from holdfast.vocabulary.pools import LABEL_GPU_FAULT, LABEL_SPOT
from holdfast.vocabulary.roles import JOB_NAMESPACES, NAMESPACE_SERVING
from holdfast.vocabulary.telemetry import GPU_EXPORTER, GPU_EXPORTER_NAMESPACE, GPU_EXPORTER_PORT

LOG = logger("move")
REASON = "GpuFault"
NODES = "/api/v1/nodes"
EVERY_S = 30.0
TIMEOUT_S = 3.0
AT_ONCE = 16
MOST_BYTES = 1_000_000
# NVIDIA's catalog: after these the GPU needs a reset or service. Others come from the program, or
# are contained. https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
FATAL_XIDS = frozenset({48, 64, 74, 79, 95, 119})
_SAMPLE = re.compile(r"^DCGM_FI_DEV_(\w+)\{.*\} (\d+)(?:\.0*)?$", re.MULTILINE)


def fault_of(text: str) -> str:
    """Of the exporter's answer: what is broken, as a label's value; empty if nothing is."""
    for name, value in _SAMPLE.findall(text):
        if name == "XID_ERRORS" and int(value) in FATAL_XIDS:
            return f"xid-{value}"
        if name == "ECC_DBE_VOL_TOTAL" and int(value):
            return "double-bit-error"
        if name == "ROW_REMAP_FAILURE" and int(value):
            return "row-remap-failure"
    return ""


def fetched(address: str) -> str:
    """What the exporter at this address serves; empty where none answers: a silent node is
    another's affair.
    """
    connection = HTTPConnection(address, GPU_EXPORTER_PORT, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read(MOST_BYTES).decode(errors="replace")
    except (OSError, HTTPException):
        return ""
    finally:
        connection.close()


@dataclass(slots=True)
class FaultyNodes:
    api: Api
    per_hour: int
    """0: faults are reported, and nothing is changed."""
    fetch: Callable[[str], str] = fetched
    namespaces: Sequence[str] = (*JOB_NAMESPACES, NAMESPACE_SERVING)
    """Whose pods leave a node before it is deleted."""
    known: set[str] = field(default_factory=set[str])
    """Nodes whose fault was reported."""
    _next_s: float = 0.0
    """From when on another may be replaced. A mover that restarts knows of no earlier one, so it
    waits its turn.
    """
    _looked_s: float = 0.0

    def step(self, nodes: Mapping[str, Node], now_s: float) -> list[event_lines.Line]:
        """One line for each fault that is new. `nodes`: those of Spot. ApiError and Unjudged come
        through.
        """
        if not nodes or now_s - self._looked_s < EVERY_S:
            return []
        self._looked_s = now_s
        self._next_s = self._next_s or now_s + self._turn_s
        self.known &= nodes.keys()
        taken = {node["metadata"]["name"]: node for node in self._marked()}
        made = [
            self._found(name, fault, nodes[name], now_s)
            for name, fault in self._faults(nodes)
            if name not in taken
        ]
        for name in taken:
            self._drain(name, now_s)
        return [line for line in made if line]

    @property
    def _turn_s(self) -> float:
        return 3_600 / self.per_hour if self.per_hour else 0.0

    def _marked(self) -> Iterable[Object]:
        return self.api.items(NODES, labelSelector=f"{LABEL_GPU_FAULT},{LABEL_SPOT}=true")

    def _faults(self, nodes: Mapping[str, Node]) -> list[tuple[str, str]]:
        """Node and fault. The API server says on which node an exporter is; its own labels do not
        count.
        """
        path = f"/api/v1/namespaces/{GPU_EXPORTER_NAMESPACE}/pods"
        label = f"{LABEL_NAME}={GPU_EXPORTER}"
        on = {}
        for pod in self.api.items(path, labelSelector=label):
            on[pod["spec"].get("nodeName")] = pod["status"].get("podIP")
        asked = {name: address for name, address in on.items() if name in nodes and address}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = pool.map(self.fetch, asked.values())
            return [
                (name, fault)
                for name, text in zip(asked, answers, strict=True)
                if (fault := fault_of(text))
            ]

    def _found(self, name: str, fault: str, node: Node, now_s: float) -> event_lines.Line | None:
        replaces = bool(self.per_hour) and now_s >= self._next_s
        if not replaces and (self.per_hour or name in self.known):
            return None  # its turn comes, or it was reported
        mark = {
            "metadata": {"labels": {LABEL_GPU_FAULT: fault}},
            "spec": {"unschedulable": True},
        }
        if replaces:
            self.api.merge(f"{NODES}/{name}", mark)
            self._next_s = now_s + self._turn_s
        self.known.add(name)
        if replaces:
            answer = "its jobs are evicted, then it is deleted"
        else:
            answer = "it is left alone, as the cap is 0"
        # As the kubelet writes events about its node: with the name in place of the uid.
        about = {
            "apiVersion": "v1",
            "kind": "Node",
            "namespace": "",
            "name": name,
            "uid": name,
        }
        event(
            self.api, about, REASON, f"the GPU is broken ({fault}): {answer}", now_s, kind="Warning"
        )
        LOG.warning("%s: the GPU is broken (%s): %s", name, fault, answer)
        return event_lines.faulty(name, node, now_s, fault, "replaced" if replaces else "reported")

    def _drain(self, name: str, now_s: float) -> None:
        left = [pod for space in self.namespaces for pod in self._pods(space, name)]
        if any([self._still_needs_it(pod, now_s) for pod in left]):  # each one is evicted
            return
        try:
            self.api.delete(f"{NODES}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
        LOG.warning("%s is deleted: its GPU is broken", name)

    def _pods(self, namespace: str, node: str) -> list[Object]:
        found = self.api.items(
            f"/api/v1/namespaces/{namespace}/pods", fieldSelector=f"spec.nodeName={node}"
        )
        return [pod for pod in found if pod["status"].get("phase") not in ("Failed", "Succeeded")]

    def _still_needs_it(self, pod: Object, now_s: float) -> bool:
        meta = pod["metadata"]
        due = meta.get("deletionTimestamp")
        if due:
            return unix_s(due) > now_s
        try:
            self.api.evict(meta["namespace"], meta["name"])
        except ApiError as error:
            LOG.warning("%s is not evicted yet: %s", meta["name"], error)
            return error.status != 404
        return True
