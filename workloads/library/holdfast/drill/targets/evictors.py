"""Evicts nodes by a taint of the Kubernetes API or by the preemption of their VM.

`gcloud`, called with argument lists, requests a simulated maintenance event of Compute Engine,
which preempts a Spot VM. Only VMs of the named project are touched, found by the providerID of the
node.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.clients import gcloud
from holdfast.clients.api import Api, ApiError, Object
from holdfast.drill.errors import DrillError
from holdfast.drill.target import Undo

NODES = "/api/v1/nodes"
TAINT = "holdfast.dev/drill"
CONFLICT = 409
_TRIES = 10
_PROVIDER_ID = re.compile(
    r"gce://(?P<project>[a-z0-9.:-]+)/(?P<zone>[a-z0-9-]+)/(?P<name>[a-z0-9-]+)"
)
_GCLOUD_S = 300
_VERB = "simulate-maintenance-event"


class NodeEvictor(Protocol):
    def check(self, node: Object) -> str:
        """Returns why this node must not be evicted; empty if it may be."""
        ...

    def evict(self, nodes: Sequence[str]) -> str:
        """Notifies the nodes, without waiting for their end. Returns a short description."""
        ...

    def rollback(self) -> Iterable[Undo]: ...


class TaintEvictor:
    """Taints nodes with NoExecute: the taint manager ends their pods with a DisruptionTarget, and
    no new pods are scheduled there.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._nodes: list[str] = []

    def check(self, node: Object) -> str:
        return "it is already cordoned" if node["spec"].get("unschedulable") else ""

    def evict(self, nodes: Sequence[str]) -> str:
        for name in nodes:
            self._nodes.append(name)
            self._replace_taints(name, [{"key": TAINT, "effect": "NoExecute"}])
        return f"{TAINT}:NoExecute on {', '.join(nodes)}"

    def rollback(self) -> Iterable[Undo]:
        for name in self._nodes:
            yield f"open {name} again", lambda name=name: self._replace_taints(name, [])

    def _replace_taints(self, name: str, drill_taints: list[Object]) -> None:
        """Replaces the drill's taints of a node and keeps the others.

        A concurrent write changes the resourceVersion; the node is then read again.
        """
        for remaining in reversed(range(_TRIES)):
            node = self._api.find(f"{NODES}/{name}")
            if node is None:
                return
            all_taints = node["spec"].get("taints", ())
            taints = [taint for taint in all_taints if taint["key"] != TAINT]
            patch = {
                "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
                "spec": {"taints": taints + drill_taints},
            }
            try:
                self._api.merge(f"{NODES}/{name}", patch)
                return
            except ApiError as error:
                if error.status != CONFLICT or not remaining:
                    raise


@dataclass(frozen=True, slots=True)
class Instance:
    project: str
    zone: str
    name: str

    @classmethod
    def of(cls, node: Object) -> "Instance | None":
        match = _PROVIDER_ID.fullmatch(node["spec"].get("providerID", ""))
        return cls(**match.groupdict()) if match else None


@dataclass(frozen=True, slots=True)
class VmEvictor:
    """Preempts the VMs of nodes by the user's own gcloud and login."""

    api: Api
    project: str

    def check(self, node: Object) -> str:
        instance = Instance.of(node)
        if instance is None:
            provider_id = node["spec"].get("providerID", "")
            return f"its providerID {provider_id!r} names no VM of Compute Engine"
        if instance.project == self.project:
            return ""
        return f"it belongs to project {instance.project}"

    def evict(self, nodes: Sequence[str]) -> str:
        """Reads the nodes again and preempts their current VMs.

        Raises DrillError if one is no longer a VM of the project, and GcloudFailed if Compute
        Engine refuses.
        """
        instances: list[Instance] = []
        for name in nodes:
            instance = Instance.of(self.api.get(f"{NODES}/{name}"))
            if instance is None or instance.project != self.project:
                raise DrillError(
                    f"not all of {', '.join(nodes)} are VMs of {self.project} any more"
                )
            instances.append(instance)
        for vm in instances:
            flags = (f"--project={vm.project}", f"--zone={vm.zone}")
            gcloud.run(("compute", "instances", _VERB, vm.name, *flags), timeout_s=_GCLOUD_S)
        names = [f"{vm.zone}/{vm.name}" for vm in instances]
        return f"{_VERB} {', '.join(names)}"

    def rollback(self) -> Iterable[Undo]:
        return ()
