"""Explains pods that are on a silent node, or are being deleted. Nothing here asks the cluster."""

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.cluster_snapshot import ClusterSnapshot
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, condition, is_ending, when
from holdfast.jobs.diagnose.reasons import Cause, Reason, describe

OVERDUE_S = 60.0
"""Time after its window in which a kubelet reports that a pod is gone."""
_OF_THE_JOB_CONTROLLER = "batch.kubernetes.io/job-tracking"


def explain_silent_node(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """Explain pods whose node does not answer: they look as if they ran.

    A pod in deletion stays there until its node answers or is deleted, and is not replaced before.
    """
    nodes = {node["metadata"]["name"]: node for node in cluster.nodes}
    silent: list[tuple[Object, Object]] = []
    for pod in job.active:
        node = nodes.get(pod["spec"].get("nodeName", ""), {})
        ready = condition(node, "Ready")
        if ready.get("status") == "Unknown":
            silent.append((pod, ready))
    if not silent:
        return None
    pod, ready = silent[0]
    node_name = pod["spec"]["nodeName"]
    since = ready.get("lastTransitionTime", "?")
    blocker = (
        f"{len(silent)} of {job.size} pods are on a node that does not answer: {node_name} since"
        f" {since}"
    )
    ending = sum(is_ending(pod) for pod, _ in silent)
    if ending:
        blocker += f"; {ending} of them are being deleted, and are not replaced before"
    action = (
        "wait: the node is deleted when its VM is gone, and the pods are made again; if it stays"
        " longer than 15 minutes, ask the platform team to delete the node"
    )
    return Cause(Reason.NODE, blocker, action, f"kubectl describe node {node_name}")


def explain_deletion(job: JobSnapshot, cluster: ClusterSnapshot) -> Cause | None:
    """Explain pods that are being deleted on a node that answers."""
    pods = [pod for pod in job.active if is_ending(pod)]
    if not pods:
        return None
    pod = min(pods, key=_window_end)
    end = _window_end(pod)
    finalizers = set(pod["metadata"].get("finalizers") or ()) - {_OF_THE_JOB_CONTROLLER}
    count = f"{len(pods)} of {job.size} pods"
    if cluster.taken_s - when(end) < OVERDUE_S:
        blocker = f"{count} are asked to exit, and have until {end} to save"
        action = "wait: a new pod starts when they are gone"
        return Cause(Reason.BACK_OFF, blocker, action, describe(pod))
    if finalizers:
        blocker = f"{count} are deleted since {end} and kept by {', '.join(sorted(finalizers))}"
        action = "ask the owner of this finalizer, whose controller has to remove it"
        return Cause(Reason.NODE, blocker, action, describe(pod))
    blocker = f"{count} should have ended by {end}, and their node has not reported it"
    action = "wait a minute; then ask the platform team to look at the node's kubelet"
    return Cause(Reason.NODE, blocker, action, describe(pod))


def _window_end(pod: Object) -> str:
    return pod["metadata"]["deletionTimestamp"]
