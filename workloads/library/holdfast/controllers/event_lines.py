"""Makes the event lines of exporter and mover: nodes, scheduled and evicted pods, moved jobs.

Pure, except `write`.
"""

import json
import socket
import sys
from collections.abc import Iterable
from typing import Any

from holdfast.controllers.cluster_objects import Node, Pod
from holdfast.vocabulary.roles import NAMESPACE_BATCH, NAMESPACE_TRAINING
from holdfast.vocabulary.telemetry import EVENT_VERSION, KIND_BATCH, KIND_NODE, KIND_TRAINING

Line = dict[str, Any]
KIND_BY_NAMESPACE = {NAMESPACE_TRAINING: KIND_TRAINING, NAMESPACE_BATCH: KIND_BATCH}
NAMESPACE_BY_KIND = {kind: namespace for namespace, kind in KIND_BY_NAMESPACE.items()}
"""Kind -> namespace of jobs whose lines name none."""
WATCHER = f"watcher-{socket.gethostname()}"
PREEMPTED = "preempted"
EXPIRED = "expired"
DELETED = "deleted"
SCHEDULED = "scheduled"
EVICT = "evict"
ADMITTED = "admitted"
MOVED = "moved"
FAULTY = "node_faulty"
RATED = "rated"
# A flex-start node is deleted within minutes of its planned end.
EXPIRY_S = 900.0


def make_node_up_line(name: str, node: Node, t: float) -> Line:
    """`seconds` is the age of the node, which may have come before anybody watched."""
    return _make_node_line("node_up", name, node, t) | {"seconds": _age_s(node, t)}


def make_node_down_line(name: str, node: Node) -> Line:
    t = node.gone_s
    if node.ends_s and t >= node.ends_s - EXPIRY_S:
        reason = EXPIRED
    elif node.taken:
        reason = PREEMPTED
    else:
        reason = DELETED
    return _make_node_line("node_down", name, node, t) | {
        "reason": reason,
        "seconds": _age_s(node, t),
    }


def make_fault_line(name: str, node: Node, t: float, fault: str, answer: str) -> Line:
    """Reports a broken GPU of a Spot node, and the mover's answer."""
    return _make_node_line(FAULTY, name, node, t) | {"fault": fault, "answer": answer}


def make_rating_line(
    machine_type: str,
    capacity: str,
    obtainability: float,
    asked_s: float,
    size: int,
    nodes: int,
    seconds: float,
) -> Line:
    """Reports how obtainable Google rated `size` machines, and that `nodes` of them came."""
    return _make_line(RATED, asked_s, "", KIND_NODE, WATCHER) | {
        "machine_type": machine_type,
        "capacity": capacity,
        "obtainability": obtainability,
        "of": size,
        "nodes": nodes,
        "seconds": round(seconds, 3),
    }


def make_scheduling_line(
    name: str,
    pod: Pod,
    node: Node | None,
    t: float,
    waited_s: float,
) -> Line | None:
    """Returns None for pods that belong to no job of the platform."""
    line = _make_pod_line(SCHEDULED, name, pod, t)
    if line is None:
        return None
    return line | {
        "seconds": round(waited_s, 3),
        "node": pod.node,
        "pool": node.pool if node else "",
        "capacity": node.capacity if node else pod.capacity,
        "accelerator": pod.accelerator,
    }


def make_admission_line(
    queue: str,
    flavor: str,
    accelerator: str,
    t: float,
    waited_s: float,
) -> Line:
    """Makes a line without a job: it is about the queue, and precedes any process of the job."""
    return _make_line(ADMITTED, t, "", KIND_NODE, WATCHER) | {
        "seconds": round(waited_s, 3),
        "queue": queue,
        "flavor": flavor,
        "accelerator": accelerator,
    }


def make_eviction_line(name: str, pod: Pod, t: float, reason: str) -> Line | None:
    """Reports that the platform ended a pod, which a killed process cannot write itself.

    Returns None for pods that belong to no job of the platform.
    """
    line = _make_pod_line(EVICT, name, pod, t)
    if line is None:
        return None
    return line | {
        "signal": "SIGTERM",
        "target": name,
        "reason": reason,
    }


def make_move_line(
    namespace: str,
    job: str,
    t: float,
    source: str,
    capacity: str,
    reason: str,
) -> Line:
    """Reports that the mover moved a job from `source` to another capacity."""
    kind = KIND_BY_NAMESPACE.get(namespace, KIND_TRAINING)
    return _make_line(MOVED, t, job, kind, WATCHER) | {
        "namespace": namespace,
        "source": source,
        "capacity": capacity,
        "reason": reason,
    }


def write(lines: Iterable[Line]) -> None:
    """Writes to standard output, which the cloud's log agent reads."""
    for line in lines:
        sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _make_pod_line(event_type: str, name: str, pod: Pod, t: float) -> Line | None:
    kind = KIND_BY_NAMESPACE.get(pod.namespace) or pod.kind
    if not (kind and pod.job):
        return None
    line = _make_line(event_type, t, pod.job, kind, name)
    return line | pod.identity.fields() | {"namespace": pod.namespace}


def _make_node_line(event_type: str, name: str, node: Node, t: float) -> Line:
    return _make_line(event_type, t, "", KIND_NODE, WATCHER) | {
        "node": name,
        "pool": node.pool,
        "zone": node.zone,
        "machine_type": node.machine_type,
        "capacity": node.capacity,
    }


def _make_line(event_type: str, t: float, job: str, kind: str, process: str) -> Line:
    return {
        "v": EVENT_VERSION,
        "t": round(t, 6),
        "event": event_type,
        "job": job,
        "kind": kind,
        "process": process,
    }


def _age_s(node: Node, t: float) -> float:
    if not node.born_s:
        return 0.0
    return round(max(0.0, t - node.born_s), 3)
