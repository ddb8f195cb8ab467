"""Event lines of exporter and mover: nodes that came and went, pods that got one, jobs that were
moved.

Pure but for `write`.
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
KIND_OF = {NAMESPACE_TRAINING: KIND_TRAINING, NAMESPACE_BATCH: KIND_BATCH}
HOME_OF = {kind: namespace for namespace, kind in KIND_OF.items()}
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
# A flex-start node goes within minutes of its planned end.
EXPIRY_S = 900.0


def node_up(name: str, node: Node, t: float) -> Line:
    """`seconds`: its age, as it may have come before anybody watched."""
    return _of_node("node_up", name, node, t) | {"seconds": _age(node, t)}


def node_down(name: str, node: Node) -> Line:
    t = node.gone_s
    expired = node.ends_s and t >= node.ends_s - EXPIRY_S
    reason = EXPIRED if expired else PREEMPTED if node.taken else DELETED
    return _of_node("node_down", name, node, t) | {
        "reason": reason,
        "seconds": _age(node, t),
    }


def faulty(name: str, node: Node, t: float, fault: str, answer: str) -> Line:
    """The mover found a broken GPU on a Spot node."""
    return _of_node(FAULTY, name, node, t) | {"fault": fault, "answer": answer}


def scheduled(
    name: str,
    pod: Pod,
    node: Node | None,
    t: float,
    waited_s: float,
) -> Line | None:
    """None for pods that belong to no job of the platform."""
    line = _of_pod(SCHEDULED, name, pod, t)
    where = {
        "node": pod.node,
        "pool": node.pool if node else "",
    }
    what = {
        "capacity": node.capacity if node else pod.capacity,
        "accelerator": pod.accelerator,
    }
    return line | {"seconds": round(waited_s, 3)} | where | what if line else None


def admitted(
    queue: str,
    flavor: str,
    accelerator: str,
    t: float,
    waited_s: float,
) -> Line:
    """Of no job, as the lines of nodes: it is about the queue, and comes before any process of the
    job.
    """
    where = {
        "queue": queue,
        "flavor": flavor,
        "accelerator": accelerator,
    }
    return _line(ADMITTED, t, "", KIND_NODE, WATCHER) | {"seconds": round(waited_s, 3)} | where


def evicted(name: str, pod: Pod, t: float, reason: str) -> Line | None:
    """The platform ended a pod: what no process can write that is killed."""
    line = _of_pod(EVICT, name, pod, t)
    if line:
        return line | {
            "signal": "SIGTERM",
            "target": name,
            "reason": reason,
        }
    return None


def moved(
    namespace: str,
    job: str,
    t: float,
    source: str,
    capacity: str,
    reason: str,
) -> Line:
    """The mover sent a job to another capacity."""
    head = _line(MOVED, t, job, KIND_OF.get(namespace, KIND_TRAINING), WATCHER)
    return head | {
        "namespace": namespace,
        "source": source,
        "capacity": capacity,
        "reason": reason,
    }


def write(lines: Iterable[Line]) -> None:
    """To standard output, where the cloud's log agent reads it."""
    sys.stdout.writelines(json.dumps(line) + "\n" for line in lines)
    sys.stdout.flush()


def _of_pod(event_type: str, name: str, pod: Pod, t: float) -> Line | None:
    kind = KIND_OF.get(pod.namespace) or pod.kind
    if not (kind and pod.job):
        return None
    return (
        _line(event_type, t, pod.job, kind, name)
        | pod.identity.fields()
        | {"namespace": pod.namespace}
    )


def _of_node(event_type: str, name: str, node: Node, t: float) -> Line:
    where = {
        "node": name,
        "pool": node.pool,
        "zone": node.zone,
    }
    return (
        _line(event_type, t, "", KIND_NODE, WATCHER)
        | where
        | {"machine_type": node.machine_type, "capacity": node.capacity}
    )


def _line(event_type: str, t: float, job: str, kind: str, process: str) -> Line:
    return {
        "v": EVENT_VERSION,
        "t": round(t, 6),
        "event": event_type,
        "job": job,
        "kind": kind,
        "process": process,
    }


def _age(node: Node, t: float) -> float:
    return round(max(0.0, t - node.born_s), 3) if node.born_s else 0.0
