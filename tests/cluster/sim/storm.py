"""Takes simulated nodes away as GKE takes Spot VMs: notice, pods terminated by the kubelet, node
gone.
"""

import time
from concurrent.futures import ThreadPoolExecutor

from holdfast.clients.api import Api, Object
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from tests.cluster.sim import nodes, pods
from tests.cluster.sim.stages import GOING, PREEMPT
from tests.cluster.sim.waiting import until

WRITERS = 8
ACTIVE = ("Pending", "Running")


def preempt(
    api: Api,
    victims: list[str],
    *,
    code: int = EXIT_PREEMPTED,
    timeout_s: float = 120.0,
) -> int:
    """Preempts nodes, and returns how many pods were hit. Their containers end with `code`.

    All victims are cordoned before the first pod ends, or replacements would land on the next one.
    """
    notice = {
        "metadata": {"labels": {GOING: "true"}},
        "spec": {"unschedulable": True},
    }
    hit: set[str] = set()

    def has_ended(pod: Object) -> bool:
        current = api.find(pods.path(pod))
        return (
            current is None
            or current["metadata"]["uid"] != pod["metadata"]["uid"]
            or not _active(current)
        )

    deadline = time.monotonic() + timeout_s
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda name: api.merge(f"{nodes.NODES}/{name}", notice), victims))
        while active := active_pods(api, set(victims)):
            fresh = [pod for pod in active if pod["metadata"]["uid"] not in hit]
            hit |= {pod["metadata"]["uid"] for pod in fresh}
            list(pool.map(lambda pod: pods.annotate(api, pod, {PREEMPT: str(code)}), fresh))
            # kwok takes them in order: asking for the last is cheap, listing thousands again is
            # not.
            until(
                "the last pods have ended",
                lambda last=active[-WRITERS:]: all(map(has_ended, last)),
                timeout_s,
            )
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{len(active)} pods still active on the victims, first {active[0]['metadata']}"
                )
        list(pool.map(lambda name: nodes.remove(api, [name]), victims))
    return len(hit)


def active_pods(api: Api, victims: set[str]) -> list[Object]:
    """Returns the pods on the victims that have not ended."""
    unended = api.items(
        "/api/v1/pods", fieldSelector="status.phase!=Failed,status.phase!=Succeeded"
    )
    pods: list[Object] = []
    for pod in unended:
        if pod["spec"].get("nodeName") in victims and _active(pod):
            pods.append(pod)
    return pods


def _active(pod: Object) -> bool:
    return pod["status"]["phase"] in ACTIVE
