"""What Kueue says of a held job: how much is asked, lent and used, and its place in the line. Pure."""

from dataclasses import dataclass
from typing import Any

from infra.contract.pools import GPU_RESOURCE
from workloads.jobs.api import Object
from workloads.jobs.nodes import gpus
from workloads.jobs.view import Surroundings, View, condition


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    blocker: str
    position: str


def held(view: View, around: Surroundings) -> Held | None:
    """None where Kueue does not have the job, or has admitted it."""
    workload = view.workload
    if workload is None or condition(workload, "Admitted").get("status") == "True":
        return None
    name = workload["spec"]["queueName"]
    line = sorted(_waiting(around.workloads, name), key=_turn)
    place = 1 + next((i for i, w in enumerate(line) if w["metadata"]["uid"] == workload["metadata"]["uid"]), 0)
    return Held(blocker=_blocker(view, around, name), position=f"{place} of {len(line)} waiting in queue {name}")


def _blocker(view: View, around: Surroundings, queue: str) -> str:
    asked = view.size * gpus(view.pod_spec)
    found = _cluster_queue(around, queue)
    if found is None:
        return f"queue {queue} does not exist in {view.namespace}, so nothing can admit the job"
    lent = sum(_amount(r["nominalQuota"]) for r in _gpu_rows(found["spec"].get("resourceGroups"), "flavors"))
    used = sum(_amount(r["total"]) for r in _gpu_rows([found.get("status", {})], "flavorsReservation"))
    return f"quota: asks for {asked} {GPU_RESOURCE}, queue {queue} lends {lent}, {used} are in use"


def _cluster_queue(around: Surroundings, queue: str) -> Object | None:
    local = next((q for q in around.local_queues if q["metadata"]["name"] == queue), None)
    wanted = local["spec"]["clusterQueue"] if local else None
    return next((q for q in around.cluster_queues if q["metadata"]["name"] == wanted), None)


def _gpu_rows(groups: list[dict[str, Any]] | None, key: str) -> list[dict[str, Any]]:
    flavors = [flavor for group in groups or () for flavor in group.get(key) or ()]
    return [row for flavor in flavors for row in flavor["resources"] if row["name"] == GPU_RESOURCE]


def _amount(quantity: object) -> int:
    return int(str(quantity))


def _waiting(workloads: list[Object], queue: str) -> list[Object]:
    mine = [w for w in workloads if w["spec"].get("queueName") == queue and w["spec"].get("active", True)]
    return [
        w for w in mine if all(condition(w, kind).get("status") != "True" for kind in ("QuotaReserved", "Finished"))
    ]


def _turn(workload: Object) -> tuple[int, str]:
    return -int(workload["spec"].get("priority") or 0), workload["metadata"]["creationTimestamp"]
