"""Explains that a node computed a step wrong, from the event line of its pod."""

from dataclasses import replace

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, when
from holdfast.jobs.diagnose.reasons import Cause, Reason
from holdfast.ledger.job_summary import WrongResult
from holdfast.vocabulary.pools import LABEL_GPU_FAULT

# What the end of the node's pod looks like otherwise.
_CONSEQUENCES = (Reason.CRASH, Reason.BACK_OFF, Reason.STARTING, Reason.NODE)


def explain_wrong_result(job: JobSnapshot, result: WrongResult, cause: Cause) -> Cause:
    """Returns the wrong result as the cause; added to what blocks, if it is something else."""
    pod = _find_pod(job, result)
    place = f"in {result.process}"
    node = ""
    if pod is not None:
        node = pod["spec"].get("nodeName", "")
        place = f"on node {node} (pod {pod['metadata']['name']})"
    text = f"step {result.step} had other gradients {place} than on other nodes"
    if cause.reason is Reason.NONE:
        return replace(cause, blocker=f"{cause.blocker}; {text}, which left")
    if cause.reason not in _CONSEQUENCES:
        return cause
    name = node or "NODE"
    return Cause(
        Reason.WRONG_RESULT,
        f"{text}: it is faulty, and left; {cause.blocker}",
        f"wait if the mover replaces it (faulty_nodes_per_hour); else `kubectl cordon {name}`",
        f"kubectl get node {name} -L {LABEL_GPU_FAULT}",
    )


def _find_pod(job: JobSnapshot, result: WrongResult) -> Object | None:
    """Returns the pod of the process, whose name begins with that of its host.

    The replacement of a pod has the same host name, and was created later.
    """
    found: list[tuple[float, Object]] = []
    for pod in job.pods:
        host = pod["spec"].get("hostname") or pod["metadata"]["name"]
        created_s = when(pod["metadata"]["creationTimestamp"])
        if result.process.startswith(f"{host}-") and created_s <= result.t_s:
            found.append((created_s, pod))
    if not found:
        return None
    _, newest = max(found, key=lambda pair: pair[0])
    return newest
