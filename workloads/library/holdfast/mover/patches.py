"""Builds the patches that move a job to another queue. Pure.

A move takes two requests, and the job goes on wherever the mover dies between them. First one patch
suspends the job, names the other queue and takes back what Kueue had put into its pods. Kueue would
start it again where it was, as it is still admitted there; so its Workload is deleted next, and
Kueue makes another from the job, in the other queue. A mover that stops after the patch leaves a
job that runs on as before.
"""

# Why it is so: infra/decisions/0058.
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.mover.movable_jobs import Movable, Object
from holdfast.vocabulary.capacity import ANNOTATION_TEMPLATES
from holdfast.vocabulary.kubernetes import LABEL_QUEUE

Patch = list[dict[str, Any]]
_PODS = "/spec/replicatedJobs/{}/template/spec/template"


class _FlavorField(NamedTuple):
    """A field of a pod template that a flavor adds to."""

    part: str
    name: str
    empty: Any
    """Its value in a template that has none."""


_FLAVOR_FIELDS = (
    _FlavorField("metadata", "labels", {}),
    _FlavorField("metadata", "annotations", {}),
    _FlavorField("spec", "nodeSelector", {}),
    _FlavorField("spec", "tolerations", []),
)


def to_queue(job: Movable, queue: str) -> Patch:
    """Builds the JSON Patch of a move. It is refused if the job changed since it was read."""
    ops: Patch = [
        _test_version(job),
        {
            "op": "add",
            "path": "/spec/suspend",
            "value": True,
        },
        {
            "op": "add",
            "path": f"/metadata/labels/{escape_key(LABEL_QUEUE)}",
            "value": queue,
        },
    ]
    # Kueue restores the template of a Job itself, in the order that the API server asks for. It
    # does not restore those of a suspended JobSet.
    if job.kind == "JobSet" and job.workload and job.workload.admitted:
        originals = [_copy_flavor_fields(template) for template in job.workload.templates]
        ops.append(
            {
                "op": "add",
                "path": f"/metadata/annotations/{escape_key(ANNOTATION_TEMPLATES)}",
                "value": json.dumps(originals),
            }
        )
        ops += _restore_templates(originals)
    return ops


def restore_original(job: Movable) -> Patch:
    """Removes from a waiting JobSet what the flavor that it left had put into its pods."""
    return [_test_version(job), *_restore_templates(job.original_templates)]


def _test_version(job: Movable) -> dict[str, Any]:
    return {
        "op": "test",
        "path": "/metadata/resourceVersion",
        "value": job.version,
    }


def _copy_flavor_fields(template: Object) -> Object:
    fields: dict[str, Any] = {}
    for part, name, empty in _FLAVOR_FIELDS:
        section = template.get(part) or {}
        fields[name] = section.get(name) or empty
    return fields


def _restore_templates(originals: Sequence[Object]) -> Patch:
    """Overwrites all flavor fields: a selector of the old flavor would exclude every other one."""
    ops: Patch = []
    for index, original in enumerate(originals):
        for part, name, empty in _FLAVOR_FIELDS:
            ops.append(
                {
                    "op": "add",
                    "path": f"{_PODS.format(index)}/{part}/{name}",
                    "value": original.get(name, empty),
                }
            )
    return ops


def escape_key(name: str) -> str:
    """Escapes a key for a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")
