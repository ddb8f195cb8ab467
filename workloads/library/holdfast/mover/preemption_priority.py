"""Makes Kueue preempt, among equal jobs, the one with the least work at stake.

By itself Kueue takes the job that was admitted last, whether it saved an hour ago or just now. The
mover writes what a stop would cost into the Workload's priority boost. A job that was just admitted
has the highest boost, or it would yield again before it gets anywhere. Guarantee: a boost is at
most MOST, less than the distance between two PriorityClasses; only an admitted job has one; it
falls when the job saves, and does not flap. If Kueue's gate PriorityBoost is closed, the annotation
has no effect.
"""

# Why it is so: infra/decisions/0070 and infra/decisions/0152.

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from holdfast.clients.api import Api, ApiError, Object
from holdfast.controllers.cluster_objects import find_controller, is_true, since_s
from holdfast.controllers.controller_log import get_logger
from holdfast.ledger.events import Event
from holdfast.vocabulary.capacity import ANNOTATION_BOOST
from holdfast.vocabulary.kubernetes import KUEUE_API, api_path
from holdfast.vocabulary.roles import JOB_NAMESPACES

LOG = get_logger("move")
MOST = 4
BOOSTS = {str(level): level for level in range(MOST + 1)}
# Node-minutes at stake for the first level; each further level takes twice as many.
FIRST_MINUTES = 8.0
# A job yields after its equals for this long after its admission.
MIN_RUN_S = 600.0
# Types of event after which nothing is at stake.
SAFE = frozenset({"start", "restore", "commit"})
Events = Callable[[str], Iterable[Event]]


def at_stake_s(events: Iterable[Event], now_s: float, admitted_s: float) -> float:
    """Returns the seconds of work that a stop without a save would lose now.

    They count since the last commit, restore or start, and at most since Kueue admitted the job at
    `admitted_s`: a pod may print any time. A program without such lines counts by that age. 0 if
    nothing is known.
    """
    safe_times = [event.t_us / 1e6 for event in events if event.type in SAFE]
    since_s = max([admitted_s, *safe_times])
    if not since_s:
        return 0.0
    return max(0.0, now_s - since_s)


def choose_boost(node_s: float, before: int = 0) -> int:
    """Returns the level for node-seconds at stake.

    One level below `before` counts as `before`, so that the boost does not flap.
    """
    minutes = node_s / 60 / FIRST_MINUTES
    if minutes < 1:
        return 0
    doublings = math.floor(math.log2(minutes))
    level = min(MOST, doublings + 1)
    return before if level == before - 1 else level


def write_boosts(
    api: Api,
    events: Events,
    now_s: float,
    namespaces: Iterable[str] = JOB_NAMESPACES,
    shielded: Collection[str] = (),
) -> int:
    """Writes the boosts of all Workloads. Returns how many changed.

    `events` returns the events of the Job or JobSet with this uid. The admitted Workloads of jobs
    in `shielded`, which are uids, keep theirs. Raises ApiError if a list fails.
    """
    count = 0
    for namespace in namespaces:
        path = f"{api_path(KUEUE_API)}/namespaces/{namespace}/workloads"
        for workload in api.items(path):
            is_shielded = is_true(workload, "Admitted") and find_controller(workload) in shielded
            if not is_shielded:
                count += _write_boost(api, workload, events, now_s)
    return count


def _write_boost(api: Api, workload: Object, events: Events, now_s: float) -> bool:
    meta = workload["metadata"]
    annotations = meta.get("annotations") or {}
    # A value that the mover never writes is replaced.
    before = BOOSTS.get(annotations.get(ANNOTATION_BOOST, "0"), -1)
    boost = _choose_boost(workload, events, now_s, max(0, before))
    if boost == before:
        return False
    path = f"{api_path(KUEUE_API)}/namespaces/{meta['namespace']}/workloads/{meta['name']}"
    try:
        api.merge(path, {"metadata": {"annotations": {ANNOTATION_BOOST: str(boost)}}})
    except ApiError as error:
        if error.status != 404:
            LOG.warning("the boost of %s was not written: %s", meta["name"], error)
        return False
    return True


def _choose_boost(
    workload: Mapping[str, Any],
    events: Events,
    now_s: float,
    before: int,
) -> int:
    # A boost of a waiting job would preempt others.
    if not is_true(workload, "Admitted") or is_true(workload, "Finished"):
        return 0
    admitted_s = since_s(workload, "Admitted")
    if now_s - admitted_s < MIN_RUN_S:
        return MOST
    nodes = 0
    for pod_set in workload["spec"].get("podSets") or ():
        nodes += int(pod_set.get("count") or 1)
    job_events = events(find_controller(workload))
    return choose_boost(nodes * at_stake_s(job_events, now_s, admitted_s), before)
