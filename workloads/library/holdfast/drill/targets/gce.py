"""Takes the VM under a GKE node away: a simulated maintenance event, which preempts a Spot VM, or its deletion.

Through `gcloud`, as argument lists. Only VMs of the named project are touched, found by the node's own
providerID, never by a name that somebody typed.
"""

import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.clients import gcloud
from holdfast.clients.api import Api, Object
from holdfast.contract.errors import Unjudged
from holdfast.drill.plan import Fault
from holdfast.drill.targets.node_evictors import NODES
from holdfast.drill.waiting import DrillError

_PROVIDER_ID = re.compile(r"gce://(?P<project>[a-z0-9.:-]+)/(?P<zone>[a-z0-9-]+)/(?P<name>[a-z0-9-]+)")
_GCLOUD_S = 300


@dataclass(frozen=True, slots=True)
class Instance:
    project: str
    zone: str
    name: str

    @classmethod
    def of(cls, node: Object) -> "Instance | None":
        match = _PROVIDER_ID.fullmatch(node["spec"].get("providerID", ""))
        return cls(**match.groupdict()) if match else None


class Compute(Protocol):
    def simulate_maintenance(self, instance: Instance) -> None: ...
    def delete(self, instance: Instance) -> None: ...


class Gcloud:
    """The user's own gcloud with the user's own login; gcloud.Refused where Compute Engine refuses."""

    def __init__(self) -> None:
        # Before anything is hit: found out in the middle, the drill would count as injected.
        if not shutil.which("gcloud"):
            raise Unjudged("gcloud is not installed: drills on GKE go through it")

    def simulate_maintenance(self, instance: Instance) -> None:
        self._run("simulate-maintenance-event", instance)

    def delete(self, instance: Instance) -> None:
        self._run("delete", instance, "--quiet")

    def _run(self, verb: str, instance: Instance, *more: str) -> None:
        place = (f"--project={instance.project}", f"--zone={instance.zone}")
        gcloud.run(("compute", "instances", verb, instance.name, *place, *more), timeout_s=_GCLOUD_S)


class VmEvictor:
    def __init__(self, api: Api, compute: Compute, project: str, fault: Fault) -> None:
        self._api, self._compute, self._project = api, compute, project
        self._end = compute.delete if fault is Fault.DELETE else compute.simulate_maintenance
        self._description = "deleted" if fault is Fault.DELETE else "a maintenance event for"

    def check(self, node: Object) -> str:
        instance = Instance.of(node)
        if instance is None:
            return f"its providerID {node['spec'].get('providerID', '')!r} names no VM of Compute Engine"
        return "" if instance.project == self._project else f"it belongs to project {instance.project}"

    def evict(self, nodes: Sequence[str]) -> str:
        """Looked up again, so that what is hit is what the cluster says now."""
        found = [Instance.of(self._api.get(f"{NODES}/{name}")) for name in nodes]
        instances = [each for each in found if each and each.project == self._project]
        if len(instances) < len(nodes):
            raise DrillError(f"not all of {', '.join(nodes)} are VMs of {self._project} any more")
        for instance in instances:
            self._end(instance)
        return f"{self._description} {', '.join(f'{each.zone}/{each.name}' for each in instances)}"

    def rollback(self) -> Iterable[tuple[str, Callable[[], object]]]:
        return ()
