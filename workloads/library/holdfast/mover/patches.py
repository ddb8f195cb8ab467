"""How a job changes its queue, so that it goes on wherever the mover dies between two requests.
Pure.

First one patch suspends the job, names the other queue and takes back what Kueue had put into its
pods. Kueue would start it again where it was, as it is still admitted there; so its Workload is
deleted next, and Kueue makes another from the job, in the other queue. A mover that stops after the
patch leaves a job that runs on as before.
"""

# Why it is so: infra/decisions/0058.
import json
from collections.abc import Sequence
from typing import Any

from holdfast.mover.movable_jobs import Movable, Object
from holdfast.vocabulary.capacity import ANNOTATION_TEMPLATES
from holdfast.vocabulary.kubernetes import LABEL_QUEUE

Patch = list[dict[str, Any]]
_PODS = "/spec/replicatedJobs/{}/template/spec/template"
# What a flavor adds to, and its value where a template has none.
_HELD: dict[str, tuple[tuple[str, str], Any]] = {
    "labels": (("metadata", "labels"), {}),
    "annotations": (("metadata", "annotations"), {}),
    "nodeSelector": (("spec", "nodeSelector"), {}),
    "tolerations": (("spec", "tolerations"), []),
}


def to_queue(job: Movable, queue: str) -> Patch:
    """JSON Patch. It is refused if anybody changed the job since it was read."""
    ops: Patch = [
        _unchanged(job),
        {
            "op": "add",
            "path": "/spec/suspend",
            "value": True,
        },
        {
            "op": "add",
            "path": f"/metadata/labels/{key(LABEL_QUEUE)}",
            "value": queue,
        },
    ]
    # Of a Job Kueue itself restores the template, in an order that the API server asks for; not of
    # a suspended JobSet.
    if job.kind == "JobSet" and job.workload and job.workload.admitted:
        held = [_held(template) for template in job.workload.templates]
        where = f"/metadata/annotations/{key(ANNOTATION_TEMPLATES)}"
        ops += [
            {
                "op": "add",
                "path": where,
                "value": json.dumps(held),
            },
            *_restored(held),
        ]
    return ops


def as_it_was(job: Movable) -> Patch:
    """For a JobSet that waits with what the flavor that it left had put into its pods."""
    return [_unchanged(job), *_restored(job.held)]


def _unchanged(job: Movable) -> dict[str, Any]:
    return {
        "op": "test",
        "path": "/metadata/resourceVersion",
        "value": job.version,
    }


def _held(template: Object) -> Object:
    return {
        name: (template.get(part) or {}).get(key) or empty
        for name, ((part, key), empty) in _HELD.items()
    }


def _restored(held: Sequence[Object]) -> Patch:
    """A selector that the old flavor left behind would keep the job out of every other one."""
    return [
        {
            "op": "add",
            "path": f"{_PODS.format(index)}/{part}/{key}",
            "value": each.get(name, empty),
        }
        for index, each in enumerate(held)
        for name, ((part, key), empty) in _HELD.items()
    ]


def key(name: str) -> str:
    """As a JSON Pointer spells it."""
    return name.replace("~", "~0").replace("/", "~1")
