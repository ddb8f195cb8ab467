"""Reads a Job or JobSet and its Kueue Workload for the mover. Pure: objects as dicts in."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.controllers.cluster_objects import find_controller, find_end_s, is_true
from holdfast.place import plan
from holdfast.place.plan import Plan
from holdfast.support.errors import InputError
from holdfast.support.values import unix_s
from holdfast.vocabulary.capacity import ANNOTATION_PLAN, ANNOTATION_TEMPLATES
from holdfast.vocabulary.kubernetes import (
    JOBSET_API,
    KUEUE_API,
    LABEL_CLUSTER_QUEUE,
    LABEL_QUEUE,
    api_path,
)

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Kueue's view of the job."""

    path: str
    queue: str
    admitted: bool
    leaving: bool
    """It is being deleted: Kueue stops the job and makes another."""
    templates: tuple[Object, ...]
    """The job's pod templates before Kueue added what its flavor asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Movable:
    path: str
    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    version: str
    plan: Plan
    created_s: float
    queue: str
    """The queue in its label, which is used when it is admitted next."""
    workload: Workload | None
    suspended: bool
    templates: tuple[Object, ...]
    """The pod templates of a JobSet, with what Kueue has added while it runs."""
    original_templates: tuple[Object, ...]
    """The same before Kueue added anything, as the last move saved them in an annotation."""

    @property
    def is_stranded(self) -> bool:
        """It waits with the marks of a flavor that it left, so no other flavor will admit it.

        This happens when Kueue starts the JobSet again between the two requests of a move, and sees
        the deletion of the Workload before its own start: without a Workload it cannot take back
        what it added.
        """
        if not self.suspended or not self.original_templates:
            return False
        if self.workload and self.workload.admitted:
            return False
        templates = list(self.templates)
        if self.workload:
            templates += self.workload.templates
        return any(_has_marks(template) for template in templates)

    @property
    def current_queue(self) -> str:
        """The queue that holds it now."""
        if self.workload and self.workload.admitted:
            return self.workload.queue
        return self.queue


def list_movable_jobs(
    jobs: Iterable[Object], workloads: Iterable[Object]
) -> tuple[list[Movable], list[tuple[Object, str]]]:
    """Returns the jobs that may run, and (metadata, reason) of those with unreadable plans."""
    workload_by_job: dict[str, Object] = {}
    for workload in workloads:
        job_uid = find_controller(workload)
        if job_uid:
            workload_by_job[job_uid] = workload
    movable_jobs: list[Movable] = []
    unreadable: list[tuple[Object, str]] = []
    for job in jobs:
        meta = job["metadata"]
        if find_end_s(job) or meta.get("deletionTimestamp"):
            continue
        job_workload = workload_by_job.get(meta["uid"])
        # A move deletes the Workload: Kueue would make an active one for a job that was stopped.
        if job_workload and not job_workload["spec"].get("active", True):
            continue
        try:
            movable_jobs.append(_parse_job(job, job_workload))
        except InputError as error:
            unreadable.append((meta, f"{error.what}: {error.got}"))
    return movable_jobs, unreadable


def _parse_job(job: Object, workload: Object | None) -> Movable:
    meta = job["metadata"]
    spec = job.get("spec") or {}
    annotations = meta.get("annotations") or {}
    labels = meta.get("labels") or {}
    version = job["apiVersion"]
    kind = "JobSet" if version == JOBSET_API else "Job"
    namespace = meta["namespace"]
    name = meta["name"]
    templates: list[Object] = []
    for replicated_job in spec.get("replicatedJobs") or ():
        templates.append(replicated_job["template"]["spec"]["template"])
    return Movable(
        path=f"{api_path(version)}/namespaces/{namespace}/{kind.lower()}s/{name}",
        api_version=version,
        kind=kind,
        namespace=namespace,
        name=name,
        uid=meta["uid"],
        version=meta["resourceVersion"],
        plan=plan.parse_plan(annotations.get(ANNOTATION_PLAN, "")),
        created_s=unix_s(meta.get("creationTimestamp")),
        queue=labels.get(LABEL_QUEUE, ""),
        workload=_parse_workload(workload) if workload else None,
        suspended=bool(spec.get("suspend")),
        templates=tuple(templates),
        original_templates=_parse_templates(annotations.get(ANNOTATION_TEMPLATES, "")),
    )


def _parse_templates(text: str) -> tuple[Object, ...]:
    """Returns no templates if the mover did not write the text: then nothing is restored."""
    if not text:
        return ()
    try:
        templates: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(templates, list):
        return ()
    if not all(isinstance(template, dict) for template in templates):
        return ()
    return tuple(templates)


def _has_marks(template: Object) -> bool:
    meta = template.get("metadata") or {}
    return LABEL_CLUSTER_QUEUE in (meta.get("labels") or {})


def _parse_workload(workload: Object) -> Workload:
    meta = workload["metadata"]
    spec = workload.get("spec") or {}
    pod_sets = spec.get("podSets") or ()
    return Workload(
        path=f"{api_path(KUEUE_API)}/namespaces/{meta['namespace']}/workloads/{meta['name']}",
        queue=spec.get("queueName") or "",
        admitted=is_true(workload, "Admitted"),
        leaving=bool(meta.get("deletionTimestamp")),
        templates=tuple(pod_set.get("template") or {} for pod_set in pod_sets),
    )
