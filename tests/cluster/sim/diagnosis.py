"""Describes a cluster in which a test has failed."""

from collections.abc import Callable, Iterable

from holdfast.clients.api import Api, ApiError, Object
from holdfast.vocabulary.kubernetes import KUEUE_API, api_path
from tests.cluster.sim.host import Host

COMPONENTS = ("kube-scheduler", "kube-controller-manager", "kwok", "jobset", "kueue")
NOISE = "configmap_cafile_content"  # no aggregated API server, so no authority for one
LINES = 30
CHARACTERS = 400


def describe(api: Api, host: Host) -> str:
    """Returns what waits and why, the taints of nodes, and the end of each component's log."""
    parts = [
        *_try(_waiting_pods, api),
        *_try(_waiting_workloads, api),
        *_try(_nodes, api),
    ]
    for name in COMPONENTS:
        path = host.processes.folder / f"{name}.log"
        if not path.exists():
            continue
        lines = []
        for line in path.read_text(errors="replace").splitlines():
            if NOISE not in line:
                lines.append(line)
        parts.append(f"-- {name}")
        for line in lines[-LINES:]:
            parts.append(line[:CHARACTERS])
    return "\n".join(parts)


def _try(ask: Callable[[Api], Iterable[str]], api: Api) -> list[str]:
    try:
        return list(ask(api))
    except (ApiError, OSError) as error:
        return [f"{ask.__name__}: {error}"]


def _waiting_pods(api: Api) -> list[str]:
    lines = ["-- pods that do not run"]
    for pod in api.items("/api/v1/pods"):
        if pod["status"].get("phase") in ("Running", "Succeeded"):
            continue
        meta = pod["metadata"]
        reasons = [_condition(c) for c in pod["status"].get("conditions", ())]
        lines.append(
            f"{meta['namespace']}/{meta['name']} {pod['status'].get('phase')}"
            f" made {meta['creationTimestamp']} ends {meta.get('deletionTimestamp', '-')}"
            f" node {pod['spec'].get('nodeName', '-')}: {'; '.join(reasons)}"
        )
    return lines


def _waiting_workloads(api: Api) -> list[str]:
    lines = ["-- workloads that Kueue has not admitted, or evicted"]
    for workload in api.items(f"{api_path(KUEUE_API)}/workloads"):
        conditions = workload.get("status", {}).get("conditions", ())
        states = {c["type"]: c["status"] for c in conditions}
        if states.get("Admitted") == "True" or states.get("Finished") == "True":
            continue
        meta = workload["metadata"]
        reasons = [_condition(c) for c in conditions]
        lines.append(
            f"{meta['namespace']}/{meta['name']} made {meta['creationTimestamp']}"
            f" active {workload['spec'].get('active', True)}: {'; '.join(reasons)}"
        )
    return lines


def _condition(condition: Object) -> str:
    reason = condition.get("reason", "")
    state = f"{condition['type']}={condition['status']}"
    return f"{state} {reason} {condition.get('message', '')}"


def _nodes(api: Api) -> list[str]:
    lines = ["-- nodes"]
    for node in api.items("/api/v1/nodes"):
        taints = [t["key"] for t in node["spec"].get("taints", ())]
        ready = []
        for c in node["status"].get("conditions", ()):
            if c["type"] == "Ready":
                ready.append(c["status"])
        lines.append(f"{node['metadata']['name']} ready {ready} taints {taints}")
    return lines
