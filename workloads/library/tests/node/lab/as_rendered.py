"""Rendered pods on machines of the lab, from the images that were built for them.

Image, user, command, environment, probes, security, grace and tolerations stay. Changed is what
only GKE has: sizes and GPU, the database's proxy, the queue, the mounted bucket; and where nothing
else is asked for the network, which is the host's.
"""

import copy
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.clients.api import Object
from holdfast.vocabulary.environment import ENV_DATABASE, ENV_GPUS
from tests.cluster.sim.runnable import without_queue

CLOUD_SQL_PROXY = "cloud-sql-proxy"
SIZE = {
    "cpu": "1",
    "memory": "2Gi",
    "ephemeral-storage": "1Gi",
}
SMALL = {
    "cpu": "200m",
    "memory": "512Mi",
    "ephemeral-storage": "100Mi",
}


@dataclass(frozen=True, kw_only=True)
class Lab:
    """The lab's substitutes for Google's services."""

    data: Path | None = None
    """Folder of this host in place of the mounted bucket."""
    env: dict[str, str] = field(default_factory=dict)
    """Replaces what is rendered, or is added to it."""
    options: dict[str, str] = field(default_factory=dict)
    """Options of the command; each replaces the rendered one, or is added."""
    host_network: bool = True
    """False: each pod has an address of its own on the lab's bridge."""


def job(doc: Object, namespace: str, lab: Lab, pods: int) -> Object:
    """Makes a Job of this number of pods that no queue holds."""
    runnable = copy.deepcopy(doc)
    runnable["metadata"] = {"name": doc["metadata"]["name"], "namespace": namespace}
    runnable["spec"] |= {
        "suspend": False,
        "completions": pods,
        "parallelism": pods,
    }
    _fit(runnable["spec"]["template"]["spec"], lab)
    return runnable


def deployment(doc: Object, lab: Lab) -> Object:
    runnable = copy.deepcopy(doc)
    _fit(runnable["spec"]["template"]["spec"], lab)
    return runnable


def _fit(spec: Object, lab: Lab) -> None:
    spec["hostNetwork"] = lab.host_network
    init_containers = []
    for container in spec.get("initContainers", ()):
        if container["name"] != CLOUD_SQL_PROXY:
            init_containers.append(container)
    spec["initContainers"] = init_containers
    for container in (*spec["initContainers"], *spec["containers"]):
        _fit_container(container, lab)
    spec["volumes"] = [_volume(item, lab) for item in spec["volumes"]]


def _fit_container(container: Object, lab: Lab) -> None:
    container["resources"] = {
        "limits": dict(SIZE),
        "requests": dict(SMALL),
    }
    entries = {}
    for entry in container.get("env", ()):
        if entry["name"] != ENV_GPUS:
            entries[entry["name"]] = entry
    variables = {}
    for name, value in lab.env.items():
        if name != ENV_DATABASE or name in entries:
            variables[name] = value
    container["env"] = [
        *(
            entries | {name: {"name": name, "value": value} for name, value in variables.items()}
        ).values()
    ]
    command = container["command"] = without_queue(container["command"])
    for name, value in lab.options.items():
        if name in command:
            command[command.index(name) + 1] = value
        else:
            command += [name, value]


def _volume(volume: Object, lab: Lab) -> Object:
    if "emptyDir" in volume:
        memory = {"sizeLimit": "256Mi"} if volume["emptyDir"].get("medium") else {}
        return volume | {"emptyDir": volume["emptyDir"] | memory}
    if "configMap" in volume or "projected" in volume:
        return volume
    assert lab.data is not None, f"nothing stands for {volume}"
    return {
        "name": volume["name"],
        "hostPath": {"path": str(lab.data)},
    }
