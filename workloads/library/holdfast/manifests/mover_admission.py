"""Keeps the mover to the changes of jobs that a move takes.

RBAC knows no fields: the right to patch a job is the right to start it, to change its labels, and
while it is suspended to send its pods to other nodes. The policies allow only what the mover does:
stop a job, name another queue, take from the pods what Kueue had added, give a gang a size that it
asked for, and stop a job before the price that it states. A compromised mover adds nothing to a
pod, and changes no job that asks for none of this. It can still end the Workload of any job, which
stops the job, but it can start only such jobs again: it can neither activate the Workload of
another stopped job nor delete it, which would make Kueue create a new, active one.
"""

# Why it is so: infra/decisions/0146, infra/decisions/0183.

import json
from collections.abc import Iterator

from holdfast.lint import api_fields
from holdfast.manifests.render_context import Body, manifest, meta
from holdfast.vocabulary.capacity import (
    ANNOTATION_BOOST,
    ANNOTATION_GIVEN_BACK,
    ANNOTATION_MAX_USD,
    ANNOTATION_QUEUED_AGAIN,
    ANNOTATION_RECEIPT,
    ANNOTATION_REQUEST_ENDED,
    ANNOTATION_SPENT_USD,
    ANNOTATION_STOPPED_FOR,
    ANNOTATION_TEMPLATES,
    ANNOTATION_YIELDED,
    LABEL_LEAST_NODES,
    LABEL_MOVES,
    LABEL_REQUEUES,
)
from holdfast.vocabulary.kubernetes import (
    JOB_API,
    JOBSET_API,
    KUEUE_API,
    KUEUE_REVOKED,
    LABEL_QUEUE,
    api_group,
)
from holdfast.vocabulary.roles import NAMESPACE_MONITORING

ADMISSION = "admissionregistration.k8s.io/v1"
NAME = "holdfast-mover"
ACCOUNT = f"system:serviceaccount:{NAMESPACE_MONITORING}:mover"
_POD_SPEC = "V1PodSpec"
_JOB_SPEC = "V1JobSpec"
_JOBSET_SPEC = f"{JOBSET_API}/JobSet.spec"
_REPLICATED_JOB = f"{_JOBSET_SPEC}.replicatedJobs"
_WORKLOAD_SPEC = f"{KUEUE_API}/Workload.spec"
_FIXED = (
    "of a job the mover changes suspend and the size of a gang, and takes what Kueue added to its"
    " pods"
)


def objects() -> Iterator[Body]:
    fixed_job = _equal("object.spec", "oldObject.spec", _JOB_SPEC, "suspend", "parallelism")
    yield from _make_job_policy("jobs", JOB_API, {**_compare_sizes(), fixed_job: _FIXED})
    fixed_jobset = _equal(
        "object.spec", "oldObject.spec", _JOBSET_SPEC, "suspend", "replicatedJobs"
    )
    fixed = {f"{fixed_jobset} && {_compare_children()}": _FIXED}
    yield from _make_job_policy("jobsets", JOBSET_API, fixed, ("replicatedJobs",))
    yield from _make_workload_policy()


def _make_job_policy(
    plural: str,
    version: str,
    validations_of_spec: dict[str, str],
    moved_fields: tuple[str, ...] = (),
) -> Iterator[Body]:
    """Makes the policies of a kind of job. Only a move changes `moved_fields` of the spec."""
    suspended = "object.spec.?suspend.orValue(false)"
    was_suspended = "oldObject.spec.?suspend.orValue(false)"
    moves = f"oldObject.metadata.?labels[?{json.dumps(LABEL_MOVES)}].orValue('') == 'true'"
    has_limit = f"oldObject.metadata.?annotations[?{json.dumps(ANNOTATION_MAX_USD)}].hasValue()"
    queue = f".metadata.?labels[?{json.dumps(LABEL_QUEUE)}].orValue('')"
    conditions = [
        f"object{queue} == oldObject{queue}",
        f"({suspended} == {was_suspended} || {has_limit})",
    ]
    for name in moved_fields:
        conditions.append(f"object.spec.?{name} == oldObject.spec.?{name}")
    stays = " && ".join(conditions)
    keys = (LABEL_QUEUE, LABEL_REQUEUES)
    annotations = (
        ANNOTATION_TEMPLATES,
        ANNOTATION_RECEIPT,
        ANNOTATION_YIELDED,
        ANNOTATION_SPENT_USD,
        ANNOTATION_STOPPED_FOR,
    )
    validations = {
        _compare_map("labels", keys): f"of labels the mover changes {' and '.join(keys)}",
        _compare_map("annotations", annotations): (
            "of annotations the mover writes what a job cost, why it was stopped, to whom it"
            " yielded, and the templates of a moved job"
        ),
        f"({stays}) || ({moves})": (
            f"the mover moves jobs with the label {LABEL_MOVES}, and stops those with the"
            f" annotation {ANNOTATION_MAX_USD}"
        ),
        f"{suspended} || !{was_suspended}": "the mover stops jobs; Kueue starts them",
        **validations_of_spec,
        _compare_owners(): "the mover changes no owners and no finalizers",
    }
    yield from _make_policy(plural, version, validations)


def _compare_sizes() -> dict[str, str]:
    """Writes that a gang has between its least and all its nodes, and other jobs their old size."""
    unchanged = "object.spec.?parallelism == oldObject.spec.?parallelism"
    label = f"oldObject.metadata.?labels[?{json.dumps(LABEL_LEAST_NODES)}]"
    size = "object.spec.?parallelism.orValue(0)"
    fits = (
        f"{label}.orValue('').matches('^[0-9]{{1,4}}$')"
        f" && {size} >= int({label}.orValue('0'))"
        f" && {size} <= object.spec.?completions.orValue(0)"
    )
    return {
        f"{unchanged} || ({fits})": (
            f"the mover gives a gang with the label {LABEL_LEAST_NODES} a size between it and"
            " completions"
        )
    }


def _make_workload_policy() -> Iterator[Body]:
    ends = "object.spec.?active.orValue(true) == false"
    was_active = "oldObject.spec.?active.orValue(true)"
    same_active = "object.spec.?active == oldObject.spec.?active"
    queued_again = _has_annotation(ANNOTATION_QUEUED_AGAIN)
    spent = _has_annotation(ANNOTATION_REQUEST_ENDED)
    new_mark = " || ".join(f"object{mark} && !oldObject{mark}" for mark in (queued_again, spent))
    annotations = (
        ANNOTATION_BOOST,
        ANNOTATION_REQUEST_ENDED,
        ANNOTATION_QUEUED_AGAIN,
        ANNOTATION_GIVEN_BACK,
    )
    validations = {
        _compare_map("labels", ()): "the mover changes no labels of a Workload",
        _compare_map("annotations", annotations): (
            f"of annotations the mover writes {', '.join(annotations)}"
        ),
        _equal("object.spec", "oldObject.spec", _WORKLOAD_SPEC, "active"): (
            "of a Workload the mover changes active"
        ),
        # Otherwise it could mark a Workload that a person has stopped, and start it.
        f"!({new_mark}) || ({was_active} && {ends})": (
            f"the mover writes {ANNOTATION_QUEUED_AGAIN} and {ANNOTATION_REQUEST_ENDED} where it"
            " ends the Workload"
        ),
        # If the mark stayed, the mover could start a Workload that a person stops later.
        f"{same_active} || {ends} || (oldObject{queued_again} && !object{queued_again})": (
            "the mover activates none but what it ended, and removes its mark"
        ),
        _compare_owners(): "the mover changes no owners and no finalizers",
    }
    yield from _make_policy("workloads", KUEUE_API, validations)
    evicted = f"c.type == 'Evicted' && c.reason == '{KUEUE_REVOKED}'"
    is_revoked = f"oldObject.?status.?conditions.orValue([]).exists(c, {evicted})"
    deletion = {
        f"{was_active} || oldObject{spent} || {is_revoked}": (
            "the mover deletes no Workload that was stopped: Kueue would make an active one"
        )
    }
    yield from _make_policy("workloads", KUEUE_API, deletion, operation="DELETE")


def _has_annotation(name: str) -> str:
    return f".metadata.?annotations[?{json.dumps(name)}].hasValue()"


def _compare_children() -> str:
    """Writes that the Jobs of a JobSet stay, but for what is taken from their pods."""
    pod = "template.spec.template"
    conditions = [
        "o.name == r.name",
        _equal("r", "o", _REPLICATED_JOB, "name", "template"),
        "r.template.?metadata == o.template.?metadata",
        _equal("r.template.spec", "o.template.spec", _JOB_SPEC, "template"),
        _equal(f"r.{pod}.spec", f"o.{pod}.spec", _POD_SPEC, "nodeSelector", "tolerations"),
    ]
    for place in ("metadata.?labels", "metadata.?annotations", "spec.?nodeSelector"):
        new = f"r.{pod}.?{place}.orValue({{}})"
        old = f"o.{pod}.?{place}.orValue({{}})"
        conditions.append(f"{new}.all(k, k in {old} && {old}[k] == {new}[k])")
    new = f"r.{pod}.spec.?tolerations.orValue([])"
    old = f"o.{pod}.spec.?tolerations.orValue([])"
    conditions.append(f"{new}.all(t, t in {old})")
    children = "object.spec.replicatedJobs"
    before = "oldObject.spec.replicatedJobs"
    same_size = f"{children}.size() == {before}.size()"
    return f"{same_size} && {children}.all(r, {before}.exists(o, {' && '.join(conditions)}))"


def _equal(new: str, old: str, type_name: str, *free: str) -> str:
    """Writes that two mappings of a type are equal, but for the fields `free`."""
    names = [name for name in api_fields.list_fields(type_name) if name not in free]
    return " && ".join(f"{new}.?{name} == {old}.?{name}" for name in names)


def _compare_map(field: str, free: tuple[str, ...]) -> str:
    """Writes that labels or annotations are equal, but for the keys `free`."""
    new = f"object.metadata.?{field}.orValue({{}})"
    old = f"oldObject.metadata.?{field}.orValue({{}})"
    keys = json.dumps(free)
    added = f"{new}.all(k, k in {keys} || (k in {old} && {old}[k] == {new}[k]))"
    return f"{added} && {old}.all(k, k in {keys} || k in {new})"


def _compare_owners() -> str:
    fields = ("ownerReferences", "finalizers")
    return " && ".join(f"object.metadata.?{name} == oldObject.metadata.?{name}" for name in fields)


def _make_policy(
    plural: str,
    version: str,
    validations: dict[str, str],
    operation: str = "UPDATE",
) -> Iterator[Body]:
    rule = {
        "apiGroups": [api_group(version)],
        "apiVersions": [version.rpartition("/")[2]],
        "operations": [operation],
        "resources": [plural],
    }
    name = f"{NAME}-{plural}"
    if operation == "DELETE":
        name += "-deletions"
    refusals: list[Body] = []
    for expression, message in validations.items():
        refusals.append({"expression": expression, "message": message})
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [
            {"name": "by-the-mover", "expression": f"request.userInfo.username == '{ACCOUNT}'"}
        ],
        "validations": refusals,
    }
    yield manifest(ADMISSION, "ValidatingAdmissionPolicy", meta(name), spec=spec)
    binding = {
        "policyName": name,
        "validationActions": ["Deny"],
    }
    yield manifest(ADMISSION, "ValidatingAdmissionPolicyBinding", meta(name), spec=binding)
