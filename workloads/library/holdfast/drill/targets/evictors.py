"""How a node is evicted: by the Kubernetes API alone, or by Compute Engine, which takes the VM
under it away.

`gcloud`, called with argument lists, requests a simulated maintenance event of Compute Engine,
which preempts a Spot VM. Only VMs of the named project are touched, found by the node's own
providerID.
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
        """Why this node must not be taken; empty if it may."""
        ...

    def evict(self, nodes: Sequence[str]) -> str:
        """What was done, in a few words. Returns when the nodes have heard, not when they are gone."""
        ...

    def rollback(self) -> Iterable[Undo]: ...


class TaintEvictor:
    """NoExecute: the taint manager ends the pods with a DisruptionTarget, and nothing new lands
    there.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._taken: list[str] = []

    def check(self, node: Object) -> str:
        return "it is closed already" if node["spec"].get("unschedulable") else ""

    def evict(self, nodes: Sequence[str]) -> str:
        for name in nodes:
            self._taken.append(name)
            self._set(name, [{"key": TAINT, "effect": "NoExecute"}])
        return f"{TAINT}:NoExecute on {', '.join(nodes)}"

    def rollback(self) -> Iterable[Undo]:
        for name in self._taken:
            yield f"open {name} again", lambda name=name: self._set(name, [])

    def _set(self, name: str, ours: list[Object]) -> None:
        """Everybody else's taints stay: with the version, a write that came between is refused and
        read again.
        """
        for left in reversed(range(_TRIES)):
            node = self._api.find(f"{NODES}/{name}")
            if node is None:
                return
            taints = [taint for taint in node["spec"].get("taints", ()) if taint["key"] != TAINT]
            version = {"resourceVersion": node["metadata"]["resourceVersion"]}
            try:
                self._api.merge(
                    f"{NODES}/{name}",
                    {
                        "metadata": version,
                        "spec": {"taints": taints + ours},
                    },
                )
                return
            except ApiError as error:
                if error.status != CONFLICT or not left:
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
    """By the user's own gcloud with the user's own login."""

    api: Api
    project: str

    def check(self, node: Object) -> str:
        instance = Instance.of(node)
        if instance is None:
            return (
                f"its providerID {node['spec'].get('providerID', '')!r} names no VM of Compute"
                " Engine"
            )
        if instance.project == self.project:
            return ""
        return f"it belongs to project {instance.project}"

    def evict(self, nodes: Sequence[str]) -> str:
        """Looked up again, so that what is hit is what the cluster says now. GcloudFailed: Compute
        Engine refuses.
        """
        found = [Instance.of(self.api.get(f"{NODES}/{name}")) for name in nodes]
        instances = [each for each in found if each and each.project == self.project]
        if len(instances) < len(nodes):
            raise DrillError(f"not all of {', '.join(nodes)} are VMs of {self.project} any more")
        for each in instances:
            place = (f"--project={each.project}", f"--zone={each.zone}")
            gcloud.run(("compute", "instances", _VERB, each.name, *place), timeout_s=_GCLOUD_S)
        return f"{_VERB} {', '.join(f'{each.zone}/{each.name}' for each in instances)}"

    def rollback(self) -> Iterable[Undo]:
        return ()
