"""How a program of somebody else's is started: what torchrun and plain scripts read, and what wraps the deaf."""

from dataclasses import replace

from holdfast.contract.exit_codes import EXIT_PREEMPTED
from holdfast.contract.kubernetes import ANNOTATION_INDEX
from holdfast.jobs.own.job_file import OnNotice, OwnJob
from holdfast.manifests.pods import Work, annotation
from holdfast.manifests.policies import RENDEZVOUS_PORT
from holdfast.manifests.training import HEAD

RANKS = ["python", "-m", "holdfast", "train", "ranks", "--processes"]
DRAIN_HOOK = ["python", "-m", "holdfast.runtime.drain"]
# `wait` returns when the trap has run, so it is asked again while the child is there. An end of 0 after a notice would
# mark the index complete and lose the work.
WRAPPER = f"""\
noticed=
trap 'noticed=1; kill -TERM "$child" 2>/dev/null' TERM
"$@" &
child=$!
while wait "$child"; code=$?; kill -0 "$child" 2>/dev/null; do :; done
[ -n "$noticed" ] && exit {EXIT_PREEMPTED}
exit "$code"
"""


def started(own: OwnJob, work: Work) -> Work:
    if own.predictor:
        return work
    if own.elastic and _processes(own) > 1:
        # torchrun's agent would end with 1, and each eviction of a node count as its crash.
        work = replace(work, command=[*RANKS, str(_processes(own)), "--", *work.command])
    work = replace(work, env=_torchrun(own) | work.env, from_pod=work.from_pod | _rank(own))
    if own.on_notice == OnNotice.DRAIN:
        return replace(work, pre_stop=DRAIN_HOOK)
    if own.on_notice == OnNotice.WRAP:
        return replace(work, command=["/bin/sh", "-c", WRAPPER, "wrap", *work.command])
    return work


def _torchrun(own: OwnJob) -> dict[str, str]:
    """What torchrun takes instead of options (PET_*), and what scripts read that start one process themselves.

    RANK and WORLD_SIZE are left to the launcher: a single process that found them would wait for peers.
    """
    processes, nodes = _processes(own), own.pods if own.gang else 1
    found = {
        "NNODES": nodes,
        "NPROC_PER_NODE": processes,
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": processes,
    }
    if own.gang:
        head = {"MASTER_ADDR": HEAD, "MASTER_PORT": RENDEZVOUS_PORT}
        found |= head | {f"PET_{name}": value for name, value in head.items()}
    return {name: str(value) for name, value in found.items()}


def _processes(own: OwnJob) -> int:
    """Of a pod."""
    return own.processes or max(own.gpu_count, 1)


def _rank(own: OwnJob) -> dict[str, str]:
    names = ("NODE_RANK", "PET_NODE_RANK") if own.gang else ()
    return {name: annotation(ANNOTATION_INDEX) for name in names}
