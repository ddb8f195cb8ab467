"""Explains that a node computed a step wrong, from the event line of its pod."""

from dataclasses import replace

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, when
from holdfast.jobs.diagnose.reasons import Cause, Reason
from holdfast.ledger.job_summary import WrongResult
from holdfast.vocabulary.pools import LABEL_GPU_FAULT

# What the end of the node's pod looks like otherwise.
_CONSEQUENCES = (Reason.CRASH, Reason.BACK_OFF, Reason.STARTING, Reason.NODE)


def explain_wrong_result(
    job: JobSnapshot,
    result: WrongResult,
    cause: Cause,
) -> Cause:
    """Returns the wrong result as the cause; added to what blocks, if it is something else."""
    pod = _find_pod(job, result)
    node = "NODE"
    place = f"in {result.process}"
    if pod is not None:
        node = pod["spec"].get("nodeName", node)
        name = pod["metadata"]["name"]
        place = f"on node {node} (pod {name})"
    step = f"step {result.step}"
    text = f"{step} had other gradients {place} than on other nodes"
    if cause.reason is Reason.NONE:
        blocker = f"{cause.blocker}; {text}, which left"
        return replace(cause, blocker=blocker)
    if cause.reason not in _CONSEQUENCES:
        return cause
    action = f"wait if the mover replaces it (faulty_nodes_per_hour); else `kubectl cordon {node}`"
    return Cause(
        reason=Reason.WRONG_RESULT,
        blocker=f"{text}: it is faulty, and left; {cause.blocker}",
        action=action,
        evidence=f"kubectl get node {node} -L {LABEL_GPU_FAULT}",
    )


def _find_pod(job: JobSnapshot, result: WrongResult) -> Object | None:
    """Returns the pod of the process, whose name begins with that of its host.

    The replacement of a pod has the same host name, and was created later.
    """
    candidates: list[tuple[float, Object]] = []
    for pod in job.pods:
        meta = pod["metadata"]
        host = pod["spec"].get("hostname")
        if not host:
            host = meta["name"]
        created_s = when(meta["creationTimestamp"])
        if created_s > result.t_s:
            continue
        if result.process.startswith(f"{host}-"):
            candidates.append((created_s, pod))
    if not candidates:
        return None
    _, newest = max(candidates, key=lambda pair: pair[0])
    return newest
