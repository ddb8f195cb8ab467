"""Decides how many pods gangs of a range of sizes have. Pure: Kueue's objects in, changes out."""

# Why it is so: infra/decisions/0154, infra/decisions/0155.

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.clients.api import Object
from holdfast.controllers.cluster_objects import find_condition, find_controller, is_true
from holdfast.mover.queue_quotas import Quotas, count_gpus, count_pod_gpus
from holdfast.support.values import unix_s
from holdfast.vocabulary.capacity import LABEL_LEAST_NODES
from holdfast.vocabulary.kubernetes import JOB_PRIORITIES, KUEUE_INADMISSIBLE, KUEUE_TOO_LARGE
from holdfast.vocabulary.pools import GPU_RESOURCE

ANNOTATION_REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"
"""Kueue writes it on the Workload of a larger gang: the one that it replaces."""
SLICE_S = 120.0
"""Time after which a growth that Kueue has not admitted is taken back."""
HIGHEST = max(priority.value for priority in JOB_PRIORITIES.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """An admitted gang whose number of pods may change."""

    job: Object
    workload: Object
    min_size: int
    size: int
    """Pods that the Job asks for."""
    max_size: int
    admitted: int
    """Pods that Kueue admitted."""
    priority: int
    queue: str
    """Its ClusterQueue."""
    flavor: str
    pod_gpus: int

    @property
    def name(self) -> str:
        return self.job["metadata"]["name"]

    @property
    def uid(self) -> str:
        return self.job["metadata"]["uid"]

    @property
    def surplus(self) -> int:
        return self.size - self.min_size

    @property
    def shield(self) -> str:
        """The boost with which it counts as a job of the highest priority."""
        return str(HIGHEST - self.priority)

    @property
    def may_be_shielded(self) -> bool:
        """True if it can yield to a job of a higher priority, so that Kueue must not preempt it."""
        return self.surplus > 0 and self.priority < HIGHEST

    @property
    def is_settled(self) -> bool:
        """True if Kueue has followed the last change of the size."""
        return self.size == self.admitted


@dataclass(frozen=True, kw_only=True, slots=True)
class Newcomer:
    """A job that waits for quota."""

    workload: Object
    priority: int
    queue: str
    """Its ClusterQueue."""
    gpus: int

    @property
    def name(self) -> str:
        return self.workload["metadata"]["ownerReferences"][0]["name"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resize:
    gang: Gang
    size: int
    newcomer: Newcomer | None = None
    """The job that the nodes are for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The changes in one queue on one flavor."""

    resizes: tuple[Resize, ...] = ()
    exposed: frozenset[str] = frozenset()
    """Uids of gangs that Kueue may preempt although they could shrink."""
    poked: Newcomer | None = None
    """The waiting job that Kueue looks at again."""
    is_calm: bool = False
    """No job waits that these gangs would take nodes from."""


def make_plan(
    gangs: Iterable[Gang],
    newcomers: Iterable[Newcomer],
    free: int,
    reclaimable: Mapping[str, int],
) -> Plan:
    """Decides about the gangs of one ClusterQueue on one flavor.

    `free` are its GPUs without a job. `reclaimable` maps the uid of each newcomer's Workload to the
    GPUs that Kueue could take from jobs of lower priority, these gangs included.
    """
    gangs = sorted(gangs, key=lambda gang: (gang.priority, -gang.surplus, gang.name))
    waiting = sorted(newcomers, key=_order)
    lowest = min((gang.priority for gang in gangs), default=0)
    for newcomer in waiting:
        missing = newcomer.gpus - free
        rivals = [gang for gang in gangs if gang.priority < newcomer.priority]
        if not rivals or not newcomer.gpus:
            continue
        # Kueue admits it by itself, or has not followed the last change yet.
        if missing <= 0 or not all(gang.is_settled for gang in rivals):
            return Plan()
        resizes = _shrink(
            rivals,
            missing,
            newcomer,
        )
        if resizes:
            return Plan(resizes=resizes)
        uid = newcomer.workload["metadata"]["uid"]
        if missing <= reclaimable.get(uid, 0):
            exposed = frozenset(gang.uid for gang in rivals)
            return Plan(exposed=exposed, poked=newcomer)
    is_calm = all(newcomer.priority < lowest for newcomer in waiting)
    return Plan(is_calm=is_calm)


def _order(newcomer: Newcomer) -> tuple[int, float]:
    created_s = unix_s(newcomer.workload["metadata"].get("creationTimestamp"))
    return -newcomer.priority, created_s


def _shrink(
    gangs: list[Gang],
    missing: int,
    newcomer: Newcomer,
) -> tuple[Resize, ...]:
    """Returns the changes that free the missing GPUs; none if they cannot all be freed."""
    resizes: list[Resize] = []
    for gang in gangs:
        if missing <= 0:
            break
        needed_pods = math.ceil(missing / gang.pod_gpus)
        pods = min(gang.surplus, needed_pods)
        if pods <= 0:
            continue
        resize = Resize(
            gang=gang,
            size=gang.size - pods,
            newcomer=newcomer,
        )
        resizes.append(resize)
        missing -= pods * gang.pod_gpus
    if missing > 0:
        return ()
    return tuple(resizes)


def grow(gangs: Iterable[Gang], free: int) -> tuple[Resize, ...]:
    """Gives free GPUs back to gangs, those of the highest priority first."""
    resizes: list[Resize] = []
    for gang in sorted(gangs, key=lambda gang: (-gang.priority, gang.name)):
        missing_pods = gang.max_size - gang.size
        pods = min(missing_pods, free // gang.pod_gpus)
        if pods <= 0 or not gang.is_settled:
            continue
        resize = Resize(gang=gang, size=gang.size + pods)
        resizes.append(resize)
        free -= pods * gang.pod_gpus
    return tuple(resizes)


def parse_gang(job: Object, workload: Object | None) -> Gang | None:
    """Parses a gang and the Workload that holds its quota.

    Returns None if it is not admitted, or was stopped.
    """
    if workload is None:
        return None
    if not is_true(workload, "Admitted") or is_true(workload, "Evicted"):
        return None
    # For more pods Kueue would make another Workload, which is active and starts the job again.
    if not workload["spec"].get("active", True):
        return None
    min_size = job["metadata"]["labels"][LABEL_LEAST_NODES]
    spec = workload["spec"]
    pod_set = spec["podSets"][0]
    admission = workload["status"].get("admission") or {}
    assignment = (admission.get("podSetAssignments") or [{}])[0]
    flavor = (assignment.get("flavors") or {}).get(GPU_RESOURCE, "")
    pod_gpus = count_pod_gpus(pod_set)
    if not min_size.isdecimal() or not flavor or not pod_gpus:
        return None
    return Gang(
        job=job,
        workload=workload,
        min_size=int(min_size),
        size=int(job["spec"]["parallelism"]),
        max_size=int(job["spec"]["completions"]),
        admitted=int(pod_set["count"]),
        priority=int(spec.get("priority") or 0),
        queue=admission.get("clusterQueue", ""),
        flavor=flavor,
        pod_gpus=pod_gpus,
    )


def list_newcomers(
    workloads: Iterable[Object],
    quotas: Quotas,
    queue: str,
    flavor: str,
) -> list[Newcomer]:
    """Returns the jobs that wait in a ClusterQueue for quota of a flavor."""
    newcomers: list[Newcomer] = []
    for workload in workloads:
        spec = workload["spec"]
        namespace = workload["metadata"]["namespace"]
        if not _waits(workload) or not find_controller(workload):
            continue
        if quotas.find_queue(namespace, spec.get("queueName", "")) != queue:
            continue
        if not quotas.fits(spec["podSets"], flavor):
            continue
        newcomer = Newcomer(
            workload=workload,
            priority=int(spec.get("priority") or 0),
            queue=queue,
            gpus=count_gpus(spec["podSets"]),
        )
        newcomers.append(newcomer)
    return newcomers


def _waits(workload: Object) -> bool:
    """Returns whether Kueue would start the job if it had the quota."""
    reason = _find_wait_reason(workload)
    return bool(reason) and reason not in KUEUE_INADMISSIBLE


def _find_wait_reason(workload: Object) -> str:
    """Returns why Kueue has not started the job; empty if it has, or has not looked at it yet."""
    if is_true(workload, "Finished") or is_true(workload, "QuotaReserved"):
        return ""
    if not workload["spec"].get("active", True):
        return ""
    annotations = workload["metadata"].get("annotations") or {}
    if ANNOTATION_REPLACES in annotations:
        return ""
    return find_condition(workload, "QuotaReserved").get("reason", "")


def choose_start_size(
    job: Object,
    workload: Object,
    workloads: list[Object],
    quotas: Quotas,
) -> int:
    """Returns the number of pods with which a gang waits for quota: all, or as many as are free
    now, if it works with those and takes them from no other job.
    """
    full_size = int(job["spec"]["completions"])
    min_size = int(job["metadata"]["labels"][LABEL_LEAST_NODES])
    reason = _find_wait_reason(workload)
    if not reason or (reason in KUEUE_INADMISSIBLE and reason != KUEUE_TOO_LARGE):
        return full_size
    spec = workload["spec"]
    namespace = workload["metadata"]["namespace"]
    queue = quotas.find_queue(namespace, spec.get("queueName", ""))
    pod_gpus = count_pod_gpus(spec["podSets"][0])
    gang = Newcomer(
        workload=workload,
        priority=int(spec.get("priority") or 0),
        queue=queue,
        gpus=full_size * pod_gpus,
    )
    sizes: list[int] = []
    for flavor in quotas.list_flavors(queue):
        if not quotas.fits(spec["podSets"], flavor):
            continue
        waiting = list_newcomers(
            workloads,
            quotas,
            queue,
            flavor,
        )
        is_first = all(_order(gang) <= _order(newcomer) for newcomer in waiting)
        taken_gpus = count_reclaimable(
            workloads,
            gang,
            flavor,
        )
        if is_first and not taken_gpus and pod_gpus:
            free = quotas.count_free(queue, flavor)
            sizes.append(free // pod_gpus)
    free_size = max(sizes, default=0)
    size = min(free_size, full_size)
    if size < min_size:
        return full_size
    return size


def count_reclaimable(
    workloads: Iterable[Object],
    newcomer: Newcomer,
    flavor: str,
) -> int:
    """Returns the GPUs of jobs in the newcomer's queue that have a lower priority."""
    gpus = 0
    for workload in workloads:
        if not is_true(workload, "QuotaReserved") or is_true(workload, "Finished"):
            continue
        spec = workload["spec"]
        priority = int(spec.get("priority") or 0)
        if priority >= newcomer.priority:
            continue
        status = workload.get("status") or {}
        admission = status.get("admission") or {}
        if admission.get("clusterQueue") != newcomer.queue:
            continue
        for assignment in admission.get("podSetAssignments") or ():
            flavors = assignment.get("flavors") or {}
            if flavors.get(GPU_RESOURCE) == flavor:
                gpus += count_gpus(spec["podSets"])
                break
    return gpus


def take_back(
    gangs: Iterable[Gang],
    workloads: Iterable[Object],
    now_s: float,
) -> tuple[Resize, ...]:
    """Ends growth that Kueue does not admit: another job was faster."""
    slices: dict[str, float] = {}
    for workload in workloads:
        meta = workload["metadata"]
        annotations = meta.get("annotations") or {}
        if ANNOTATION_REPLACES not in annotations:
            continue
        if is_true(workload, "QuotaReserved") or is_true(workload, "Finished"):
            continue
        uid = find_controller(workload)
        slices[uid] = unix_s(meta.get("creationTimestamp"))
    resizes: list[Resize] = []
    for gang in gangs:
        created_s = slices.get(gang.uid)
        if created_s is None or gang.size <= gang.admitted:
            continue
        if now_s - created_s < SLICE_S:
            continue
        resize = Resize(gang=gang, size=gang.admitted)
        resizes.append(resize)
    return tuple(resizes)
