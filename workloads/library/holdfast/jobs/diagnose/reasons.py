"""Defines the cause that explains a job: a reason for programs, and four texts for people."""

import re
from dataclasses import dataclass
from enum import StrEnum

from holdfast.clients.api import Object


class Reason(StrEnum):
    """Stable identifiers: programs match them."""

    DONE = "done"
    FAILED = "failed"
    NONE = "none"  # all its pods run
    SUSPENDED = "suspended"  # by hand, no queue has it
    QUOTA = "quota"  # of the queue, of the namespace or of the Google project
    FLEX_QUEUE = "flex-queue"  # Dynamic Workload Scheduler has not granted the nodes yet
    GATE = "gate"  # an admission check or a scheduling gate
    REFUSED = "refused"  # the API server refuses its pods
    IMAGE = "image"
    CONFIG = "config"  # a ConfigMap, Secret or setting without which no container can be made
    VOLUME = "volume"  # a claim, a disk or a bucket
    INIT = "init"  # an init container fails
    TAINT = "taint"
    SELECTOR = "selector"
    STOCK_OUT = "stock-out"  # Google has no such machine now
    POOL_LIMIT = "pool-limit"  # the pool, or auto-provisioning, is at its maximum
    SCALE_UP = "scale-up"  # nodes are on their way
    CAPACITY = "capacity"  # nodes fit and are full
    STARTING = "starting"  # a node each, containers not up yet
    CRASH = "crash"
    MEMORY = "memory"  # killed at its memory limit
    NODE = "node"  # the kubelet rejected or evicted the pod
    WRONG_RESULT = "wrong-result"  # a node computed a step wrong, and left the gang
    EGRESS = "egress"  # a pod waits for a host that its namespace may not reach
    BACK_OFF = "back-off"  # taken down and not created again yet


@dataclass(frozen=True, slots=True)
class Cause:
    reason: Reason
    blocker: str
    """The number or the message that blocks."""
    action: str
    """The advice to the user."""
    evidence: str
    """The command that shows it."""
    position: str = ""
    """The place in a queue."""


_NOISE = re.compile(
    r"no new claims to deallocate|preemption:|Pod is at risk of not being scheduled"
)
_BRIEF = 240


def describe(pod: Object) -> str:
    return f"kubectl describe pod -n {pod['metadata']['namespace']} {pod['metadata']['name']}"


def brief(text: str) -> str:
    """Return one line, without what a controller adds about preemption attempts."""
    line = " ".join(text.split())
    message = _NOISE.split(line)[0].strip().removesuffix(".")
    if len(message) > _BRIEF:
        return f"{message[: _BRIEF - 3]}..."
    return message
