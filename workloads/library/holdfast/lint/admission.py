"""Rules of the linter as ValidatingAdmissionPolicies: the API server says the same to those who
never run the linter. One policy has no rule: it keeps the label by which network policies know the
pods of a gang to the Jobs of its name.

Each condition is CEL over `j`, the spec of a Job, and true where the rule finds nothing. A policy
reads node selectors only, so it finds less than the linter and nothing else
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

# On a namespace: `deny` refuses what is found; without the label the API server only warns.
LABEL_ADMISSION = "holdfast.dev/admission"
DENY = "deny"
API = "admissionregistration.k8s.io/v1"
Body = dict[str, Any]
_POD = "j.template.spec"
_ON_CONDITION = "o.type == 'DisruptionTarget' && o.?status.orValue('True') == 'True'"
_DISRUPTED = f"r.?onPodConditions.orValue([]).exists(o, {_ON_CONDITION})"


def objects(pools: tuple[Pool, ...]) -> Iterator[Body]:
    """A policy for Jobs and one for JobSets, and for each two bindings: to warn, and to refuse."""
    inner = "object.spec.replicatedJobs.map(r, r.template.spec)"
    kinds = {"jobs": (JOB_API, "[object.spec]"), "jobsets": (JOBSET_API, inner)}
    for plural, (version, jobs) in kinds.items():
        name = f"holdfast-{plural}"
        yield _policy(name, version, plural, jobs, _conditions(plural, pools))
        yield _binding(name, "warn", ["Warn", "Audit"], "NotIn")
        yield _binding(name, DENY, ["Deny"], "In")
    yield from _gang_pods()


def _gang_pods() -> Iterator[Body]:
    """Refuses a pod that takes the label of a gang's pods, and with it the way to their ports."""
    label = f"?metadata.?labels[?{_cel(LABEL_GANG)}].orValue('')"
    system = " || ".join(
        f"request.userInfo.username.startsWith({_cel(prefix)})"
        for prefix in ("system:serviceaccount:kube-system:", "system:kube-controller-manager")
    )
    # As Jobs of a run are called, that of a JobSet too; accounts of kube-system make the pods of a
    # ReplicaSet as well.
    called = f"'^' + object.{label} + '(-[0-9a-f]+)?(-workers-0)?$'"
    owner = f"o.kind == 'Job' && o.?controller.orValue(false) && o.name.matches({called})"
    name = "holdfast-gang-pods"
    yield _object(
        "ValidatingAdmissionPolicy",
        name,
        {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [_resources("v1", "pods")]},
            # A server that updates a pod keeps its label.
            "matchConditions": [
                {"name": "labelled", "expression": f"object.{label} != ''"},
                {
                    "name": "now",
                    "expression": (
                        f"request.operation == 'CREATE' || object.{label} != oldObject.{label}"
                    ),
                },
            ],
            "validations": [
                {
                    "expression": (
                        f"({system}) && object.metadata.?ownerReferences.orValue([]).exists(o,"
                        f" {owner})"
                    ),
                    "message": (
                        f"{LABEL_GANG} is for pods of the Job of that name alone: network policies"
                        " open ports to pods that have it. Fix: create a Job of the run's name, or"
                        " leave the label out."
                    ),
                }
            ],
        },
    )
    selector = {"namespaceSelector": {"matchLabels": {LABEL_PART_OF: PART_OF}}}
    bound = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": selector,
    }
    yield _object("ValidatingAdmissionPolicyBinding", name, bound)


def _variables(jobs: str) -> list[Body]:
    """Lists of specs of Jobs: all, those on Spot, and those whose nodes can be preempted."""
    spot = _provisioned("spot", contract.LABEL_SPOT)
    flex = _provisioned("flex-start", contract.LABEL_FLEX_START)
    lists = {
        "jobs": jobs,
        "spot": f"variables.jobs.filter(j, {spot})",
        "flex": f"variables.jobs.filter(j, {flex})",
    }
    lists["takeable"] = "variables.spot + variables.flex"
    return [{"name": name, "expression": expression} for name, expression in lists.items()]


def _conditions(plural: str, pools: tuple[Pool, ...]) -> dict[str, tuple[str, str]]:
    """Rule -> the list that it judges, and what holds of each spec `j` of it."""
    windows = {p.pool_class or p.name: p.window.pod_s for p in pools if p.capacity is Capacity.SPOT}
    window = f"{_cel(windows)}[?{_label(contract.LABEL_POOL_CLASS)}].orValue({min(windows.values(), default=15)})"
    flex = _provisioned("flex-start", contract.LABEL_FLEX_START)
    with_gpus = _cel(sorted({p.pool_class or p.name for p in pools if p.accelerator}))
    gpu = f"{_POD}.containers.exists(c, c.?resources.?limits[?{_cel(GPU_RESOURCE)}].hasValue())"
    named = " || ".join(f"{_label(key)} != ''" for key in NAMING)
    rules = "j.?podFailurePolicy.rules.orValue([])"
    # In a JobSet the rule fails the child, and the JobSet restarts it.
    spared = "true" if plural == "jobsets" else "r.action == 'Ignore'"
    codes = _cel(sorted({EXIT_PREEMPTED, EXIT_KILLED, EXIT_RETRY}))
    fails = (
        "r.action == 'FailJob' && has(r.onExitCodes) && (r.onExitCodes.operator == 'In' ?"
        f" {codes}.exists(n, n in r.onExitCodes.values) : !{codes}.all(n, n in"
        " r.onExitCodes.values))"
    )
    return {
        "HF004": ("spot", f"{flex} || {_tolerated(SPOT_TAINT)}"),
        "HF013": ("spot", f"!({flex})"),
        "HF030": ("jobs", f"!{gpu} || {named} || {_POD}.?affinity.?nodeAffinity.hasValue()"),
        "HF033": (
            "jobs",
            (
                f"{gpu} || ({_label(contract.LABEL_ACCELERATOR)} == '' && "
                f"!({_label(contract.LABEL_POOL_CLASS)} in {with_gpus}))"
            ),
        ),
        "HF101": ("spot", f"{_POD}.?terminationGracePeriodSeconds.orValue(30) <= {window}"),
        "HF104": (
            "spot",
            f"j.template.?metadata.?annotations[?{_cel(SAFE_TO_EVICT)}].orValue('') != 'false'",
        ),
        "HF110": ("takeable", f"{rules}.exists(r, {_DISRUPTED} && {spared})"),
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


def _policy(
    name: str,
    version: str,
    plural: str,
    jobs: str,
    conditions: dict[str, tuple[str, str]],
) -> Body:
    return _object(
        "ValidatingAdmissionPolicy",
        name,
        {
            # A policy that cannot be evaluated stops no job.
            "failurePolicy": "Ignore",
            "matchConstraints": {"resourceRules": [_resources(version, plural)]},
            # What a controller makes was judged as its owner.
            "matchConditions": [
                {"name": "made-by-a-person", "expression": "!has(object.metadata.ownerReferences)"}
            ],
            "variables": _variables(jobs),
            "validations": [
                {
                    "expression": f"variables.{judged}.all(j, {condition})",
                    "message": _message(rule_id),
                }
                for rule_id, (judged, condition) in conditions.items()
            ],
        },
    )


def _resources(version: str, plural: str) -> Body:
    group, _, short = version.rpartition("/")
    return {
        "apiGroups": [group],
        "apiVersions": [short],
        "operations": ["CREATE", "UPDATE"],
        "resources": [plural],
    }


def _message(rule_id: str) -> str:
    rule = all_rules()[rule_id]
    return f"{rule.name}: {rule.what} Fix: {rule.fix}."


def _binding(policy: str, suffix: str, actions: list[str], operator: str) -> Body:
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
    return _object("ValidatingAdmissionPolicyBinding", f"{policy}-{suffix}", spec)


def _object(kind: str, name: str, spec: Body) -> Body:
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
    """Of the pod's node selector; '' without it."""
    return f"{_POD}.?nodeSelector[?{_cel(key)}].orValue('')"


def _provisioned(provisioning: str, key: str) -> str:
    return (
        f"{_label(key)} == 'true' || {_label(contract.LABEL_PROVISIONING)} == {_cel(provisioning)}"
    )


def _tolerated(taint: contract.Taint) -> str:
    return (
        f"{_POD}.?tolerations.orValue([]).exists(t, t.?key.orValue('') in ['', {_cel(taint.key)}]"
        f" && t.?effect.orValue('') in ['', {_cel(taint.effect.value)}] && (t.?operator.orValue('')"
        f" == 'Exists' || t.?value.orValue('') == {_cel(taint.value)}))"
    )


def _cel(value: object) -> str:
    """JSON of strings, numbers, lists and maps is CEL."""
    return json.dumps(value, sort_keys=True)
