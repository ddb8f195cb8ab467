"""Takes simulated nodes away as GKE takes Spot VMs: notice, pods terminated by the kubelet, node gone."""

import time
from concurrent.futures import ThreadPoolExecutor

from infra.contract.lifecycle import EXIT_PREEMPTED
from tests.cluster.sim import nodes
from tests.cluster.sim.stages import GOING, PREEMPT
from workloads.jobs.api import Api, ApiError, Object

WRITERS = 8
ACTIVE = ("Pending", "Running")


def preempt(api: Api, victims: list[str], *, code: int = EXIT_PREEMPTED, timeout_s: float = 120.0) -> int:
    """How many pods were hit. `code` is what their containers end with.

    All victims are closed before the first pod ends, or replacements would land on the next victim.
    """
    notice = {"metadata": {"labels": {GOING: "true"}}, "spec": {"unschedulable": True}}
    hit: set[str] = set()
    deadline = time.monotonic() + timeout_s
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda name: api.merge(f"{nodes.NODES}/{name}", notice), victims))
        while active := active_pods(api, set(victims)):
            fresh = [pod for pod in active if pod["metadata"]["uid"] not in hit]
            hit |= {pod["metadata"]["uid"] for pod in fresh}
            list(pool.map(lambda pod: _terminate(api, pod, code), fresh))
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(active)} pods still active on the victims, first {active[0]['metadata']}")
            time.sleep(0.1)
        list(pool.map(lambda name: nodes.remove(api, [name]), victims))
    return len(hit)


def active_pods(api: Api, victims: set[str]) -> list[Object]:
    """Pods that a scheduler has put on the victims and that have not ended."""
    return [
        pod
        for pod in api.items("/api/v1/pods")
        if pod["spec"].get("nodeName") in victims and pod["status"]["phase"] in ACTIVE
    ]


def _terminate(api: Api, pod: Object, code: int) -> None:
    meta = pod["metadata"]
    try:
        api.merge(
            f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}",
            {"metadata": {"annotations": {PREEMPT: str(code)}}},
        )
    except ApiError as error:
        if error.status != 404:  # gone by itself
            raise
