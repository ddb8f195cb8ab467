"""Writes rules of the linter as ValidatingAdmissionPolicies.

The API server then says the same to people who never run the linter. One policy has no rule: only
pods of a gang's own Job may have the label by which network policies recognize the gang.

Each condition is CEL over `j`, the spec of a Job, and true where the rule finds nothing. A policy
reads node selectors only, so it finds a subset of what the linter finds
(https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/).
"""

# Why it is so: infra/decisions/0062.

import json
from collections.abc import Iterator
from typing import Any

from holdfast.lint.registry import all_rules
from holdfast.lint.rules.machines import NAMING
from holdfast.lint.rules.shutdown import SAFE_TO_EVICT
from holdfast.vocabulary import pools as contract
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.exit_codes import EXIT_KILLED, EXIT_PREEMPTED, EXIT_RETRY
from holdfast.vocabulary.kubernetes import JOB_API, JOBSET_API, LABEL_GANG, LABEL_PART_OF, PART_OF
from holdfast.vocabulary.pools import GPU_RESOURCE, SPOT_TAINT, Pool

# A namespace whose label is `deny` rejects what a policy finds; else the API server only warns.
LABEL_ADMISSION = "holdfast.dev/admission"
DENY = "deny"
API = "admissionregistration.k8s.io/v1"
Body = dict[str, Any]
_POD = "j.template.spec"
_ON_CONDITION = "o.type == 'DisruptionTarget' && o.?status.orValue('True') == 'True'"
_DISRUPTED = f"r.?onPodConditions.orValue([]).exists(o, {_ON_CONDITION})"


def objects(pools: tuple[Pool, ...]) -> Iterator[Body]:
    """Yields a policy for Jobs and one for JobSets, each with a binding to warn and one to deny.

    The last policy and binding protect the pods of gangs.
    """
    yield from _make_rule_policy("jobs", JOB_API, "[object.spec]", pools)
    child_specs = "object.spec.replicatedJobs.map(r, r.template.spec)"
    yield from _make_rule_policy("jobsets", JOBSET_API, child_specs, pools)
    yield from _make_gang_policy()


def _make_rule_policy(
    plural: str, version: str, jobs: str, pools: tuple[Pool, ...]
) -> Iterator[Body]:
    name = f"holdfast-{plural}"
    yield _make_policy(name, version, plural, jobs, _make_conditions(plural, pools))
    yield _make_binding(name, "warn", ["Warn", "Audit"], "NotIn")
    yield _make_binding(name, DENY, ["Deny"], "In")


def _make_gang_policy() -> Iterator[Body]:
    """Denies a pod that takes the label of a gang's pods, which opens the ports of the gang."""
    label = f"?metadata.?labels[?{_cel(LABEL_GANG)}].orValue('')"
    service_account = "system:serviceaccount:kube-system:"
    controller_manager = "system:kube-controller-manager"
    is_system = (
        f"request.userInfo.username.startsWith({_cel(service_account)}) || "
        f"request.userInfo.username.startsWith({_cel(controller_manager)})"
    )
    # The names of a run's Jobs, that of a JobSet too; accounts of kube-system also make the pods of
    # a ReplicaSet.
    names = f"'^' + object.{label} + '(-[0-9a-f]+)?(-workers-0)?$'"
    is_owner = f"o.kind == 'Job' && o.?controller.orValue(false) && o.name.matches({names})"
    has_owner = f"object.metadata.?ownerReferences.orValue([]).exists(o, {is_owner})"
    is_new = f"request.operation == 'CREATE' || object.{label} != oldObject.{label}"
    message = (
        f"{LABEL_GANG} is for pods of the Job of that name alone: network policies open ports to"
        " pods that have it. Fix: create a Job of the run's name, or leave the label out."
    )
    name = "holdfast-gang-pods"
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [_make_resource_rule("v1", "pods")]},
        # A server that updates a pod keeps its label.
        "matchConditions": [
            {"name": "labelled", "expression": f"object.{label} != ''"},
            {"name": "now", "expression": is_new},
        ],
        "validations": [{"expression": f"({is_system}) && {has_owner}", "message": message}],
    }
    yield _make_object("ValidatingAdmissionPolicy", name, policy)
    selector = {"namespaceSelector": {"matchLabels": {LABEL_PART_OF: PART_OF}}}
    binding = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": selector,
    }
    yield _make_object("ValidatingAdmissionPolicyBinding", name, binding)


def _make_variables(jobs: str) -> list[Body]:
    """Makes lists of Job specs: all, those on Spot, and those whose nodes can be preempted."""
    spot = _is_provisioned("spot", contract.LABEL_SPOT)
    flex = _is_provisioned("flex-start", contract.LABEL_FLEX_START)
    lists = {
        "jobs": jobs,
        "spot": f"variables.jobs.filter(j, {spot})",
        "flex": f"variables.jobs.filter(j, {flex})",
        "takeable": "variables.spot + variables.flex",
    }
    return [{"name": name, "expression": expression} for name, expression in lists.items()]


def _make_conditions(plural: str, pools: tuple[Pool, ...]) -> dict[str, tuple[str, str]]:
    """Rule -> the list that it judges, and the condition that must hold for each spec `j`."""
    windows: dict[str, int] = {}
    gpu_classes: set[str] = set()
    for pool in pools:
        pool_class = pool.pool_class or pool.name
        if pool.capacity is Capacity.SPOT:
            windows[pool_class] = pool.window.pod_s
        if pool.accelerator:
            gpu_classes.add(pool_class)
    shortest_window = min(windows.values(), default=15)
    pool_class_label = _label(contract.LABEL_POOL_CLASS)
    window = f"{_cel(windows)}[?{pool_class_label}].orValue({shortest_window})"
    flex = _is_provisioned("flex-start", contract.LABEL_FLEX_START)
    gpu = f"{_POD}.containers.exists(c, c.?resources.?limits[?{_cel(GPU_RESOURCE)}].hasValue())"
    has_name = " || ".join(f"{_label(key)} != ''" for key in NAMING)
    rules = "j.?podFailurePolicy.rules.orValue([])"
    # In a JobSet the rule fails the child, and the JobSet restarts it.
    ignores = "true" if plural == "jobsets" else "r.action == 'Ignore'"
    codes = _cel(sorted({EXIT_PREEMPTED, EXIT_KILLED, EXIT_RETRY}))
    fails = (
        "r.action == 'FailJob' && has(r.onExitCodes) && (r.onExitCodes.operator == 'In' ?"
        f" {codes}.exists(n, n in r.onExitCodes.values) : !{codes}.all(n, n in"
        " r.onExitCodes.values))"
    )
    without_gpus = (
        f"{_label(contract.LABEL_ACCELERATOR)} == '' && "
        f"!({pool_class_label} in {_cel(sorted(gpu_classes))})"
    )
    return {
        "HF004": ("spot", f"{flex} || {_tolerates(SPOT_TAINT)}"),
        "HF013": ("spot", f"!({flex})"),
        "HF030": ("jobs", f"!{gpu} || {has_name} || {_POD}.?affinity.?nodeAffinity.hasValue()"),
        "HF033": ("jobs", f"{gpu} || ({without_gpus})"),
        "HF101": ("spot", f"{_POD}.?terminationGracePeriodSeconds.orValue(30) <= {window}"),
        "HF104": (
            "spot",
            f"j.template.?metadata.?annotations[?{_cel(SAFE_TO_EVICT)}].orValue('') != 'false'",
        ),
        "HF110": ("takeable", f"{rules}.exists(r, {_DISRUPTED} && {ignores})"),
        "HF111": ("jobs", f"!{rules}.exists(r, {_DISRUPTED}) || [{rules}[0]].all(r, {_DISRUPTED})"),
        "HF113": (
            "takeable",
            f"has(j.podFailurePolicy) || {_POD}.?restartPolicy.orValue('') != 'OnFailure'",
        ),
        "HF115": ("jobs", f"!{rules}.exists(r, {fails})"),
        "HF118": ("jobs", f"has(j.activeDeadlineSeconds) || has({_POD}.activeDeadlineSeconds)"),
        "HF119": ("jobs", "has(object.spec.ttlSecondsAfterFinished)"),
        "HF303": ("takeable", f"{_POD}.?priorityClassName.orValue('') != ''"),
    }


def _make_policy(
    name: str,
    version: str,
    plural: str,
    jobs: str,
    conditions: dict[str, tuple[str, str]],
) -> Body:
    validations: list[Body] = []
    for rule_id, (variable, condition) in conditions.items():
        expression = f"variables.{variable}.all(j, {condition})"
        validations.append({"expression": expression, "message": _make_message(rule_id)})
    spec = {
        # A policy that cannot be evaluated stops no job.
        "failurePolicy": "Ignore",
        "matchConstraints": {"resourceRules": [_make_resource_rule(version, plural)]},
        # What a controller makes was judged as its owner.
        "matchConditions": [
            {"name": "made-by-a-person", "expression": "!has(object.metadata.ownerReferences)"}
        ],
        "variables": _make_variables(jobs),
        "validations": validations,
    }
    return _make_object("ValidatingAdmissionPolicy", name, spec)


def _make_resource_rule(version: str, plural: str) -> Body:
    group, _, api_version = version.rpartition("/")
    return {
        "apiGroups": [group],
        "apiVersions": [api_version],
        "operations": ["CREATE", "UPDATE"],
        "resources": [plural],
    }


def _make_message(rule_id: str) -> str:
    rule = all_rules()[rule_id]
    return f"{rule.name}: {rule.what} Fix: {rule.fix}."


def _make_binding(policy: str, suffix: str, actions: list[str], operator: str) -> Body:
    selector = {
        "matchLabels": {LABEL_PART_OF: PART_OF},
        "matchExpressions": [
            {
                "key": LABEL_ADMISSION,
                "operator": operator,
                "values": [DENY],
            }
        ],
    }
    spec = {
        "policyName": policy,
        "validationActions": actions,
        "matchResources": {"namespaceSelector": selector},
    }
    return _make_object("ValidatingAdmissionPolicyBinding", f"{policy}-{suffix}", spec)


def _make_object(kind: str, name: str, spec: Body) -> Body:
    head: Body = {
        "apiVersion": API,
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": {LABEL_PART_OF: PART_OF},
        },
    }
    return head | {"spec": spec}


def _label(key: str) -> str:
    """Returns the value of a label in the pod's node selector; '' without it."""
    return f"{_POD}.?nodeSelector[?{_cel(key)}].orValue('')"


def _is_provisioned(provisioning: str, key: str) -> str:
    return (
        f"{_label(key)} == 'true' || {_label(contract.LABEL_PROVISIONING)} == {_cel(provisioning)}"
    )


def _tolerates(taint: contract.Taint) -> str:
    return (
        f"{_POD}.?tolerations.orValue([]).exists(t, t.?key.orValue('') in ['', {_cel(taint.key)}]"
        f" && t.?effect.orValue('') in ['', {_cel(taint.effect.value)}] && (t.?operator.orValue('')"
        f" == 'Exists' || t.?value.orValue('') == {_cel(taint.value)}))"
    )


def _cel(value: object) -> str:
    """Writes a constant: JSON of strings, numbers, lists and maps is CEL."""
    return json.dumps(value, sort_keys=True)
