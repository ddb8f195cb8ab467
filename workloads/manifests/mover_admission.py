"""Keeps the mover to the changes of jobs that a move takes.

RBAC knows no fields: the right to patch a job is the right to start it, to change its labels, and
while it is suspended to send its pods to other nodes. The policies leave of it what a move does:
stop a job, name another queue, and take from the pods what Kueue had added. A mover that was
taken over adds nothing to a pod, and touches no job that does not ask to be moved.
"""

# Why it is so: infra/decisions/0146.

import json
from collections.abc import Iterator

from holdfast.lint import api_fields
from holdfast.manifests.render_context import Body, manifest, meta
from holdfast.vocabulary.capacity import (
    ANNOTATION_BOOST,
    ANNOTATION_RECEIPT,
    ANNOTATION_SPENT,
    ANNOTATION_TEMPLATES,
    LABEL_MOVES,
    LABEL_REQUEUES,
)
from holdfast.vocabulary.kubernetes import (
    JOB_API,
    JOBSET_API,
    KUEUE_API,
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


def objects() -> Iterator[Body]:
    fixed_job = _equal("object.spec", "oldObject.spec", _JOB_SPEC, "suspend")
    yield from _make_job_policy("jobs", JOB_API, fixed_job)
    fixed_jobset = _equal(
        "object.spec", "oldObject.spec", _JOBSET_SPEC, "suspend", "replicatedJobs"
    )
    yield from _make_job_policy("jobsets", JOBSET_API, f"{fixed_jobset} && {_compare_children()}")
    yield from _make_workload_policy()


def _make_job_policy(plural: str, version: str, same_spec: str) -> Iterator[Body]:
    suspended = "object.spec.?suspend.orValue(false)"
    was_suspended = "oldObject.spec.?suspend.orValue(false)"
    moves = f"oldObject.metadata.?labels[?{json.dumps(LABEL_MOVES)}].orValue('') == 'true'"
    queue = f".metadata.?labels[?{json.dumps(LABEL_QUEUE)}].orValue('')"
    stays = f"object.spec == oldObject.spec && object{queue} == oldObject{queue}"
    keys = (LABEL_QUEUE, LABEL_REQUEUES)
    validations = {
        _compare_map("labels", keys): f"of labels the mover changes {' and '.join(keys)}",
        _compare_map("annotations", (ANNOTATION_TEMPLATES, ANNOTATION_RECEIPT)): (
            "of annotations the mover writes the receipt and the templates of a moved job"
        ),
        f"({stays}) || ({moves})": f"the mover moves jobs with the label {LABEL_MOVES}",
        f"{suspended} || !{was_suspended}": "the mover stops jobs; Kueue starts them",
        same_spec: "of a job the mover changes suspend, and takes what Kueue added to its pods",
        _compare_owners(): "the mover changes no owners and no finalizers",
    }
    yield from _make_policy(plural, version, validations)


def _make_workload_policy() -> Iterator[Body]:
    stops = "object.spec.?active.orValue(true) == false"
    same_active = "object.spec.?active == oldObject.spec.?active"
    validations = {
        _compare_map("labels", ()): "the mover changes no labels of a Workload",
        _compare_map("annotations", (ANNOTATION_BOOST, ANNOTATION_SPENT)): (
            f"of annotations the mover writes {ANNOTATION_BOOST} and {ANNOTATION_SPENT}"
        ),
        _equal("object.spec", "oldObject.spec", _WORKLOAD_SPEC, "active"): (
            "of a Workload the mover changes active"
        ),
        f"{same_active} || {stops}": "the mover ends a Workload; it activates none",
        _compare_owners(): "the mover changes no owners and no finalizers",
    }
    yield from _make_policy("workloads", KUEUE_API, validations)


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


def _make_policy(plural: str, version: str, validations: dict[str, str]) -> Iterator[Body]:
    rule = {
        "apiGroups": [api_group(version)],
        "apiVersions": [version.rpartition("/")[2]],
        "operations": ["UPDATE"],
        "resources": [plural],
    }
    name = f"{NAME}-{plural}"
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [
            {"name": "by-the-mover", "expression": f"request.userInfo.username == '{ACCOUNT}'"}
        ],
        "validations": [
            {"expression": expression, "message": message}
            for expression, message in validations.items()
        ],
    }
    yield manifest(ADMISSION, "ValidatingAdmissionPolicy", meta(name), spec=spec)
    binding = {
        "policyName": name,
        "validationActions": ["Deny"],
    }
    yield manifest(ADMISSION, "ValidatingAdmissionPolicyBinding", meta(name), spec=binding)
