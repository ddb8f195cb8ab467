"""Which of equal jobs Kueue preempts: the one with the least work at stake.

Kueue takes the job that was admitted last, so one that saved an hour ago is hit like one that saved
now. The mover writes what a stop would cost into the Workload's priority boost. A job that was just
admitted has the highest, or it would yield again before it gets anywhere. Guarantee: a boost is at
most MOST, less than the distance between two PriorityClasses; only an admitted job has one; it
falls when the job saves, and does not flap. With Kueue's gate PriorityBoost closed the annotation
has no effect.
"""

# Why it is so: infra/decisions/0070.

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.clients.api import Api, ApiError, Object
from holdfast.controllers.cluster_objects import controller_of, is_true, since_s
from holdfast.controllers.controller_log import logger
from holdfast.ledger.events import Event
from holdfast.vocabulary.kubernetes import KUEUE_API, api_path
from holdfast.vocabulary.roles import JOB_NAMESPACES

LOG = logger("move")
ANNOTATION_BOOST = "kueue.x-k8s.io/priority-boost"
MOST = 4
# Node-minutes at stake for the first level; each further level takes twice as many.
FIRST_MINUTES = 8.0
# For so long after its admission a job yields after its equals.
MIN_RUN_S = 600.0
# Types of event after which nothing is at stake.
SAFE = frozenset({"start", "restore", "commit"})
Events = Callable[[str], Iterable[Event]]


def at_stake_s(events: Iterable[Event], now_s: float) -> float:
    """Seconds of work that a stop without a save would lose now: since the last commit, restore or
    start; 0 without one.
    """
    safe_s = max((event.t_us / 1e6 for event in events if event.type in SAFE), default=now_s)
    return max(0.0, now_s - safe_s)


def boost(node_s: float, before: int = 0) -> int:
    """Level for node-seconds at stake. One level below `before` counts as `before`, so that a level
    is left for good.
    """
    minutes = node_s / 60 / FIRST_MINUTES
    level = min(MOST, math.floor(math.log2(minutes)) + 1) if minutes >= 1 else 0
    return before if level == before - 1 and level > 0 else level


def write(
    api: Api,
    events: Events,
    now_s: float,
    namespaces: Iterable[str] = JOB_NAMESPACES,
) -> int:
    """Boosts of all Workloads; how many were written. `events`: by the uid of a Job or JobSet.
    ApiError comes through from a list.
    """
    listed = (
        found
        for space in namespaces
        for found in api.items(f"{api_path(KUEUE_API)}/namespaces/{space}/workloads")
    )
    return sum(_written(api, found, events, now_s) for found in listed)


def _written(api: Api, workload: Object, events: Events, now_s: float) -> bool:
    meta = workload["metadata"]
    written = (meta.get("annotations") or {}).get(ANNOTATION_BOOST, "0")
    before = int(written) if written in map(str, range(MOST + 1)) else -1
    wanted = _wanted(workload, events, now_s, max(0, before))
    if wanted == before:
        return False
    path = f"{api_path(KUEUE_API)}/namespaces/{meta['namespace']}/workloads/{meta['name']}"
    try:
        api.merge(path, {"metadata": {"annotations": {ANNOTATION_BOOST: str(wanted)}}})
    except ApiError as error:
        if error.status != 404:
            LOG.warning("the boost of %s was not written: %s", meta["name"], error)
        return False
    return True


def _wanted(
    workload: Mapping[str, Any],
    events: Events,
    now_s: float,
    before: int,
) -> int:
    if not is_true(workload, "Admitted") or is_true(workload, "Finished"):
        return 0  # one that waits would push others out
    if now_s - since_s(workload, "Admitted") < MIN_RUN_S:
        return MOST
    nodes = sum(int(each.get("count") or 1) for each in workload["spec"].get("podSets") or ())
    return boost(nodes * at_stake_s(events(controller_of(workload)), now_s), before)
