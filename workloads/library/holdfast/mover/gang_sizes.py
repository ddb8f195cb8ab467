"""Makes gangs of a range of sizes smaller for jobs of higher priority, and larger again.

Kueue preempts whole jobs. A gang with `nodes: 4..8` can go on with fewer nodes, so the mover lowers
the parallelism of its Job by as many pods as the waiting job needs, and never below the least. The
Job controller ends those pods with their notice, Kueue takes them off the gang's Workload and
admits the job. Until then a priority boost keeps Kueue from preempting the gang. If all gangs
together cannot make enough room, the boost goes and Kueue decides. Nodes for which no job waits go
back to the gang. A gang that waits starts with the nodes that are free, if it works with those.
Guarantee: only gangs of the same ClusterQueue and of a lower priority yield; a
gang that waits has no boost; without a mover every gang keeps the size that it has.
"""

# Why it is so: infra/decisions/0154.

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from holdfast.clients.api import Api, ApiError, Object
from holdfast.controllers.cluster_objects import find_end_s, find_held, is_true
from holdfast.controllers.controller_log import get_logger
from holdfast.mover.cluster_api import write_event
from holdfast.mover.gang_plan import (
    Gang,
    Newcomer,
    Plan,
    Resize,
    choose_start_size,
    count_reclaimable,
    grow,
    list_newcomers,
    make_plan,
    parse_gang,
    take_back,
)
from holdfast.mover.preemption_priority import ANNOTATION_BOOST
from holdfast.mover.queue_quotas import Quotas, read_quotas
from holdfast.vocabulary.capacity import ANNOTATION_YIELDED, LABEL_LEAST_NODES
from holdfast.vocabulary.job_identity import is_count
from holdfast.vocabulary.kubernetes import ANNOTATION_ELASTIC, JOB_API, KUEUE_API, api_path
from holdfast.vocabulary.roles import JOB_NAMESPACES

LOG = get_logger("move")
SHRUNK = "GangShrunk"
GROWN = "GangGrown"
CALM_S = 60.0
"""Time without a waiting job after which a gang grows: each change of its size stops it briefly."""
POKE = "-1"
"""Boost that makes Kueue look at a waiting job again; a positive one would push equals out."""


@dataclass(slots=True)
class GangSizes:
    api: Api
    shielded: set[str] = field(default_factory=set)
    """Uids of Jobs whose boost is written here."""
    calm_since_s: dict[tuple[str, str], float] = field(default_factory=dict)
    """ClusterQueue and flavor -> since when no job waits for the nodes of its gangs."""

    def step(
        self,
        now_s: float,
        namespaces: Iterable[str] = JOB_NAMESPACES,
    ) -> int:
        """Changes sizes and boosts. Returns how many gangs got another size."""
        jobs: dict[str, Object] = {}
        namespaces = list(namespaces)
        for namespace in namespaces:
            jobs |= self._list_jobs(namespace)
        if not jobs:
            self.shielded.clear()
            self.calm_since_s.clear()
            return 0
        workloads: list[Object] = []
        for namespace in namespaces:
            path = f"{api_path(KUEUE_API)}/namespaces/{namespace}/workloads"
            workloads += self.api.items(path)
        quotas = read_quotas(self.api, namespaces)
        workload_by_job = find_held(workloads)
        gangs: list[Gang] = []
        changes = 0
        for uid, job in jobs.items():
            gang = parse_gang(job, workload_by_job.get(uid))
            if gang:
                gangs.append(gang)
            else:
                changes += self._fit_waiting(
                    job,
                    workload_by_job.get(uid),
                    workloads,
                    quotas,
                )
        exposed = set[str]()
        for key in {(gang.queue, gang.flavor) for gang in gangs}:
            members = [gang for gang in gangs if (gang.queue, gang.flavor) == key]
            plan = self._plan(
                key,
                members,
                workloads,
                quotas,
                now_s,
            )
            # Boosts are written before a gang shrinks, and before Kueue looks again.
            exposed |= plan.exposed
            self._write_shields(members, exposed)
            for resize in plan.resizes:
                changes += self._resize(resize, now_s)
            if plan.poked:
                self._poke(plan.poked)
        self.shielded = {gang.uid for gang in gangs if _is_shielded(gang, exposed)}
        return changes

    def _plan(
        self,
        key: tuple[str, str],
        gangs: list[Gang],
        workloads: list[Object],
        quotas: Quotas,
        now_s: float,
    ) -> Plan:
        queue, flavor = key
        newcomers = list_newcomers(
            workloads,
            quotas,
            queue,
            flavor,
        )
        reclaimable: dict[str, int] = {}
        for newcomer in newcomers:
            uid = newcomer.workload["metadata"]["uid"]
            reclaimable[uid] = count_reclaimable(
                workloads,
                newcomer,
                flavor,
            )
        free = quotas.count_free(queue, flavor)
        plan = make_plan(
            gangs,
            newcomers,
            free,
            reclaimable,
        )
        if not plan.is_calm:
            self.calm_since_s.pop(key, None)
            return plan
        since = self.calm_since_s.setdefault(key, now_s)
        if now_s - since < CALM_S:
            return plan
        resizes = take_back(
            gangs,
            workloads,
            now_s,
        )
        resizes += grow(gangs, free)
        return Plan(resizes=resizes, is_calm=True)

    def _list_jobs(self, namespace: str) -> dict[str, Object]:
        path = f"{api_path(JOB_API)}/namespaces/{namespace}/jobs"
        jobs: dict[str, Object] = {}
        for job in self.api.items(path, labelSelector=LABEL_LEAST_NODES):
            meta = job["metadata"]
            is_over = find_end_s(job) or meta.get("deletionTimestamp")
            is_elastic = (meta.get("annotations") or {}).get(ANNOTATION_ELASTIC) == "true"
            if is_elastic and not is_over and _has_sizes(job):
                jobs[meta["uid"]] = job
        return jobs

    def _fit_waiting(
        self,
        job: Object,
        workload: Object | None,
        workloads: list[Object],
        quotas: Quotas,
    ) -> int:
        """Lets a gang that waits for quota wait for as many nodes as are free, or for all. It has
        no boost, which would preempt others. Returns 1 if the size was changed.
        """
        if workload is None or not job["spec"].get("suspend") or is_true(workload, "Admitted"):
            return 0
        annotations = workload["metadata"].get("annotations") or {}
        if annotations.get(ANNOTATION_BOOST, "0") not in ("0", POKE):
            self._write_boost(workload, "0")
        size = choose_start_size(
            job,
            workload,
            workloads,
            quotas,
        )
        if size == job["spec"]["parallelism"]:
            return 0
        return self._merge_size(
            job,
            size,
            None,
        )

    def _write_shields(
        self,
        gangs: list[Gang],
        exposed: Collection[str],
    ) -> None:
        for gang in gangs:
            annotations = gang.workload["metadata"].get("annotations") or {}
            boost = annotations.get(ANNOTATION_BOOST, "0")
            is_shielded = _is_shielded(gang, exposed)
            if is_shielded and boost != gang.shield:
                self._write_boost(gang.workload, gang.shield)
            elif boost == gang.shield != "0" and not is_shielded:
                self._write_boost(gang.workload, "0")

    def _poke(self, newcomer: Newcomer) -> None:
        annotations = newcomer.workload["metadata"].get("annotations") or {}
        boost = annotations.get(ANNOTATION_BOOST)
        self._write_boost(newcomer.workload, "0" if boost == POKE else POKE)

    def _write_boost(
        self,
        workload: Object,
        boost: str,
    ) -> None:
        meta = workload["metadata"]
        path = f"{api_path(KUEUE_API)}/namespaces/{meta['namespace']}/workloads/{meta['name']}"
        try:
            self.api.merge(path, {"metadata": {"annotations": {ANNOTATION_BOOST: boost}}})
        except ApiError as error:
            if error.status != 404:
                LOG.warning(
                    "the boost of %s was not written: %s",
                    meta["name"],
                    error,
                )

    def _resize(
        self,
        resize: Resize,
        now_s: float,
    ) -> int:
        gang = resize.gang
        newcomer = resize.newcomer
        is_larger = resize.size > gang.admitted
        yielded_to = newcomer.name if newcomer else None
        if not newcomer and resize.size < gang.max_size:
            annotations = gang.job["metadata"].get("annotations") or {}
            yielded_to = annotations.get(ANNOTATION_YIELDED)
        if not self._merge_size(
            gang.job,
            resize.size,
            yielded_to,
        ):
            return 0
        message = f"{resize.size} of its {gang.max_size} nodes from now on: "
        if newcomer:
            message += f"{newcomer.name} has a higher priority and gets the others"
        elif is_larger:
            message += "no job of a higher priority waits for them"
        else:
            message += "another job got the free ones first"
        LOG.info(
            "%s: %s",
            gang.name,
            message,
        )
        involved = {
            "apiVersion": JOB_API,
            "kind": "Job",
        } | gang.job["metadata"]
        write_event(
            self.api,
            involved,
            GROWN if is_larger else SHRUNK,
            message,
            now_s,
        )
        return 1

    def _merge_size(
        self,
        job: Object,
        size: int,
        yielded_to: str | None,
    ) -> int:
        meta = job["metadata"]
        path = f"{api_path(JOB_API)}/namespaces/{meta['namespace']}/jobs/{meta['name']}"
        change = {
            "metadata": {"annotations": {ANNOTATION_YIELDED: yielded_to}},
            "spec": {"parallelism": size},
        }
        try:
            self.api.merge(path, change)
        except ApiError as error:
            LOG.warning(
                "the size of %s was not changed: %s",
                meta["name"],
                error,
            )
            return 0
        return 1


def _is_shielded(gang: Gang, exposed: Collection[str]) -> bool:
    return gang.may_be_shielded and gang.uid not in exposed


def _has_sizes(job: Object) -> bool:
    """Returns whether a Job has a least and a full size; the author of a manifest writes both."""
    least_nodes = job["metadata"]["labels"][LABEL_LEAST_NODES]
    return is_count(least_nodes) and job["spec"].get("completions") is not None
