"""What the mover reads of a Job or JobSet and of its Kueue Workload. Pure: objects as dicts in."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.controllers.cluster_objects import controller_of, ended_s, is_true
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
    """The job's pod templates as they were before Kueue added what its flavor asks for."""


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
    """By its label: where it goes when it is admitted next."""
    workload: Workload | None
    suspended: bool
    templates: tuple[Object, ...]
    """A JobSet's own, with what Kueue has added while it runs."""
    held: tuple[Object, ...]
    """The same before Kueue added anything, as the last move wrote them down."""

    @property
    def stranded(self) -> bool:
        """It waits with the marks of the flavor that it left, so no other one will have it.

        A move does so when Kueue starts the JobSet again between the two requests, and sees the
        Workload go before it sees its own start: with no Workload it cannot take back what it
        added.
        """
        if not self.suspended or not self.held or (self.workload and self.workload.admitted):
            return False
        made_from = self.workload.templates if self.workload else ()
        return any(map(_is_marked, (*self.templates, *made_from)))

    @property
    def queued_at(self) -> str:
        """The queue that has it now."""
        if self.workload and self.workload.admitted:
            return self.workload.queue
        return self.queue


def movables(
    jobs: Iterable[Object], workloads: Iterable[Object]
) -> tuple[list[Movable], list[tuple[Object, str]]]:
    """Jobs that are not over; and the metadata of those whose plan cannot be read, with why."""
    owned = {owner: found for found in workloads if (owner := controller_of(found))}
    good: list[Movable] = []
    bad: list[tuple[Object, str]] = []
    for job in jobs:
        if ended_s(job) or job["metadata"].get("deletionTimestamp"):
            continue
        try:
            good.append(_movable(job, owned.get(job["metadata"]["uid"])))
        except InputError as error:
            bad.append((job["metadata"], f"{error.what}: {error.got}"))
    return good, bad


def _movable(job: Object, workload: Object | None) -> Movable:
    meta = job["metadata"]
    spec = job.get("spec") or {}
    annotations = meta.get("annotations") or {}
    kind = "JobSet" if job["apiVersion"] == JOBSET_API else "Job"
    return Movable(
        path=f"{api_path(job['apiVersion'])}/namespaces/{meta['namespace']}/{kind.lower()}s/{meta['name']}",
        api_version=job["apiVersion"],
        kind=kind,
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        version=meta["resourceVersion"],
        plan=plan.read(annotations.get(ANNOTATION_PLAN, "")),
        created_s=unix_s(meta.get("creationTimestamp")),
        queue=(meta.get("labels") or {}).get(LABEL_QUEUE, ""),
        workload=_workload(workload) if workload else None,
        suspended=bool(spec.get("suspend")),
        templates=tuple(
            each["template"]["spec"]["template"] for each in spec.get("replicatedJobs") or ()
        ),
        held=_held(annotations.get(ANNOTATION_TEMPLATES, "")),
    )


def _held(text: str) -> tuple[Object, ...]:
    """None if the text is not what the mover writes: then nothing is restored from it."""
    try:
        found: Any = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return ()
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        return ()
    return tuple(found)


def _is_marked(template: Object) -> bool:
    return LABEL_CLUSTER_QUEUE in ((template.get("metadata") or {}).get("labels") or {})


def _workload(found: Object) -> Workload:
    meta = found["metadata"]
    spec = found.get("spec") or {}
    return Workload(
        path=f"{api_path(KUEUE_API)}/namespaces/{meta['namespace']}/workloads/{meta['name']}",
        queue=spec.get("queueName") or "",
        admitted=is_true(found, "Admitted"),
        leaving=bool(meta.get("deletionTimestamp")),
        templates=tuple(each.get("template") or {} for each in spec.get("podSets") or ()),
    )
