"""Writes rules of the linter as ValidatingAdmissionPolicies.

The API server then says the same to people who never run the linter. One policy has no rule: only
pods of a gang's own Job may have the label by which network policies recognize the gang.

Each condition is CEL over `j`, a Job with its spec in `j.job`, and true where the rule finds
nothing. An update is judged by what it changes only: a policy does not find again what was there
before the update, and nothing stops an object that is being deleted. So a namespace can begin to
refuse while older objects are still in it. A policy reads node selectors only, so it finds a subset
of what the linter finds
(https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/).
"""

# Why it is so: infra/decisions/0062.

import json
from collections.abc import Iterator
from typing import Any

from holdfast.lint import ignores
from holdfast.lint.placement import FLEX, SPOT_TAINT_KEYS
from holdfast.lint.platform import JUDGED_LABELS, UNJUDGED_LABELS, Platform
from holdfast.lint.registry import all_rules
from holdfast.lint.rules.machines import NAMING
from holdfast.lint.rules.shutdown import DEFAULT_GRACE_S, SAFE_TO_EVICT
from holdfast.platform import document
from holdfast.vocabulary import pools as contract
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.exit_codes import EXIT_KILLED, EXIT_PREEMPTED, EXIT_RETRY
from holdfast.vocabulary.kubernetes import (
    JOB_API,
    JOBSET_API,
    LABEL_GANG,
    LABEL_PART_OF,
    NAMESPACE_JOBSET,
    NAMESPACE_KUEUE,
    PART_OF,
    api_group,
)
from holdfast.vocabulary.pools import GPU_RESOURCE, GPU_TAINT, Effect, Pool

# A namespace whose label is `deny` rejects what a policy finds; else the API server only warns.
LABEL_ADMISSION = "holdfast.dev/admission"
DENY = "deny"
API = "admissionregistration.k8s.io/v1"
Body = dict[str, Any]
_KUBE_SYSTEM = "system:serviceaccount:kube-system:"
_CONTROLLER_MANAGER = "system:kube-controller-manager"
# Owner of Jobs -> its API group, and names of the users that create Jobs for it. An owner reference
# counts only together with its controller: anybody can write one.
_JOB_CONTROLLERS = {
    "JobSet": (api_group(JOBSET_API), [f"system:serviceaccount:{NAMESPACE_JOBSET}:"]),
    "CronJob": (api_group(JOB_API), [f"{_KUBE_SYSTEM}cronjob-controller", _CONTROLLER_MANAGER]),
}
# Every resource that can change a pod's labels: the server copies a Binding's to its pod.
_POD_RESOURCES = ("pods", "pods/status", "pods/binding", "bindings")
_OLD = "old_"
_DEFAULT_NOTES = {"HF102": f", or states the default of {DEFAULT_GRACE_S} s"}
_FIELDS = ("job", "matching", "reached", "offers")
_POD = "j.job.template.spec"
_ON_CONDITION = "o.type == 'DisruptionTarget' && o.?status.orValue('True') == 'True'"
_DISRUPTED = f"r.?onPodConditions.orValue([]).exists(o, {_ON_CONDITION})"


def build_policies(source: document.Platform) -> Iterator[Body]:
    """Yields a policy for Jobs and one for JobSets, each with a binding to warn and one to deny.

    The last policy and binding protect the pods of gangs.
    """
    platform = Platform(source)
    yield from _make_rule_policy("jobs", JOB_API, "[OBJECT.spec]", platform)
    child_specs = "OBJECT.spec.replicatedJobs.map(r, r.template.spec)"
    yield from _make_rule_policy("jobsets", JOBSET_API, child_specs, platform)
    yield from _make_gang_policy()


def _make_rule_policy(plural: str, version: str, jobs: str, platform: Platform) -> Iterator[Body]:
    name = f"holdfast-{plural}"
    variables = [*_list_offers(platform), *_make_variables(jobs)]
    yield _make_policy(name, version, plural, variables, _make_conditions(plural))
    yield _make_binding(name, "warn", ["Warn", "Audit"], "NotIn")
    yield _make_binding(name, DENY, ["Deny"], "In")


def _make_gang_policy() -> Iterator[Body]:
    """Denies a pod that takes the label of a gang's pods, which opens the ports of the gang."""
    label = f"?metadata.?labels[?{_cel(LABEL_GANG)}].orValue('')"
    is_system = _is_requested_by([_KUBE_SYSTEM, _CONTROLLER_MANAGER])
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
        "matchConstraints": {"resourceRules": [_make_resource_rule("v1", *_POD_RESOURCES)]},
        # A server that updates a pod keeps its label.
        "matchConditions": [
            {"name": "labeled", "expression": f"object.{label} != ''"},
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


def _list_offers(platform: Platform) -> list[Body]:
    """Lists what the platform offers to pods, as the linter sees it: maps by name, and names."""
    labels: dict[str, dict[str, str]] = {}
    zones: dict[str, list[str]] = {}
    taints: dict[str, list[dict[str, str]]] = {}
    windows: dict[str, int] = {}
    flex: list[str] = []
    flex_by_request: list[str] = []
    gpu: list[str] = []
    spot_values: set[str] = set()
    for pool in platform.offers:
        labels[pool.name] = platform.labels(pool)
        zones[pool.name] = list(pool.zones or platform.zones)
        taints[pool.name] = _list_taints(pool)
        if pool.capacity is Capacity.SPOT:
            windows[pool.name] = pool.window.pod_s
        if pool.capacity is Capacity.SPOT and pool in platform.pools:
            spot_values |= {pool.name, pool.pool_class} - {""}
        if pool.capacity in FLEX:
            flex.append(pool.name)
        if pool.capacity in FLEX and pool not in platform.pools:
            flex_by_request.append(pool.name)
        if pool.accelerator:
            gpu.append(pool.name)
    facts: dict[str, object] = {
        "labels": labels,
        "zones": zones,
        "taints": taints,
        "windows": windows,
        "spot_values": sorted(spot_values),
        "flex_offers": flex,
        "requested_offers": flex_by_request,
        "gpu_offers": gpu,
    }
    return [
        {
            "name": name,
            "expression": _cel(fact),
        }
        for name, fact in facts.items()
    ]


def _list_taints(pool: Pool) -> list[dict[str, str]]:
    taints: list[dict[str, str]] = []
    for taint in pool.taints:
        if taint.effect is not Effect.PREFER_NO_SCHEDULE:
            effect = taint.effect.value
            taints.append(
                {
                    "key": taint.key,
                    "value": taint.value,
                    "effect": effect,
                }
            )
    return taints


def _make_variables(jobs: str) -> list[Body]:
    """Makes lists of what the conditions judge: the object's spec, its Jobs, those on Spot.

    Each is there a second time, as `old_...`, for the object before an update; empty without one.
    So are the annotations, of the object and of its pods. A Job gets the offers that it can use
    as a variable, so that they are computed once.
    """
    variables: list[Body] = []
    for prefix, name in ("", "object"), (_OLD, "oldObject"):
        specs = jobs.replace("OBJECT", name)
        annotations = f"[{name}.metadata.?annotations.orValue({{}})]"
        job_annotations = "j.job.template.?metadata.?annotations.orValue({})"
        jobs_here = f"variables.{prefix}jobs"
        lists = {
            "objects": f"{name} == null ? [] : [{name}.spec]",
            "specs": f"{name} == null ? [] : {specs}.map(s, {{'job': dyn(s)}})",
            "matched": _add_field(f"variables.{prefix}specs", "matching", _MATCHING),
            "reached": _add_field(f"variables.{prefix}matched", "reached", _REACHED),
            "jobs": _add_field(f"variables.{prefix}reached", "offers", _OFFERS),
            "spot": f"{jobs_here}.filter(j, {_IS_ON_SPOT})",
            "flex": f"{jobs_here}.filter(j, {_IS_ON_FLEX})",
            "takeable": f"variables.{prefix}spot + variables.{prefix}flex",
            "annotations": (
                f"{name} == null ? [] : {annotations} + {jobs_here}.map(j, {job_annotations})"
            ),
        }
        for variable, expression in lists.items():
            variables.append({"name": f"{prefix}{variable}", "expression": expression})
    return variables


def _add_field(jobs: str, field: str, expression: str) -> str:
    """Writes CEL that adds a field to the Jobs of a list: CEL cannot name a value otherwise."""
    former_fields = _FIELDS[: _FIELDS.index(field)]
    fields = [f"'{name}': dyn(j.{name})" for name in former_fields]
    fields.append(f"'{field}': dyn({expression})")
    return f"{jobs}.map(j, {{{', '.join(fields)}}})"


def _make_conditions(plural: str) -> dict[str, tuple[str, str]]:
    """Rule -> the list that it judges, and the condition that must hold for each `j`."""
    has_name = " || ".join(f"{_label(key)} != ''" for key in NAMING)
    rules = "j.job.?podFailurePolicy.rules.orValue([])"
    # In a JobSet the rule fails the child, and the JobSet restarts it.
    ignores = "true" if plural == "jobsets" else "r.action == 'Ignore'"
    codes = _cel(sorted({EXIT_PREEMPTED, EXIT_KILLED, EXIT_RETRY}))
    fails = (
        "r.action == 'FailJob' && has(r.onExitCodes) && (r.onExitCodes.operator == 'In' ?"
        f" {codes}.exists(n, n in r.onExitCodes.values) : !{codes}.all(n, n in"
        " r.onExitCodes.values))"
    )
    preemptible = _label("cloud.google.com/gke-preemptible")
    is_spot_selected = f"{_label(contract.LABEL_SPOT)} == 'true' || {preemptible} == 'true'"
    grace = f"{_POD}.?terminationGracePeriodSeconds.orValue(0)"
    fits_window = f"{_SPOT_OFFERS}.all(p, {grace} <= variables.windows[p])"
    default_fits = f"{_SPOT_OFFERS}.all(p, {DEFAULT_GRACE_S} <= variables.windows[p])"
    # The server writes the default into a Job before it asks a policy; not into a JobSet.
    unstated = DEFAULT_GRACE_S if plural == "jobs" else 0
    return {
        "HF004": ("jobs", _IS_ADMITTED),
        "HF013": ("jobs", f"!{_MEANS_FLEX} || !({is_spot_selected})"),
        "HF030": (
            "jobs",
            f"!{_HAS_GPUS} || {has_name} || {_POD}.?affinity.?nodeAffinity.hasValue()",
        ),
        "HF033": (
            "jobs",
            f"{_HAS_GPUS} || {_SELECTOR}.size() == 0 || j.offers.size() == 0"
            f" || !j.offers.all(p, p in variables.gpu_offers)",
        ),
        "HF101": ("spot", f"{grace} == {unstated} || {fits_window}"),
        "HF102": ("spot", f"{grace} != {unstated} || {default_fits}"),
        "HF104": (
            "spot",
            f"j.job.template.?metadata.?annotations[?{_cel(SAFE_TO_EVICT)}].orValue('') != 'false'",
        ),
        "HF110": ("takeable", f"{rules}.exists(r, {_DISRUPTED} && {ignores})"),
        "HF111": ("jobs", f"!{rules}.exists(r, {_DISRUPTED}) || [{rules}[0]].all(r, {_DISRUPTED})"),
        "HF113": (
            "takeable",
            f"has(j.job.podFailurePolicy) || {_POD}.?restartPolicy.orValue('') != 'OnFailure'",
        ),
        "HF115": ("jobs", f"!{rules}.exists(r, {fails})"),
        "HF118": ("jobs", f"has(j.job.activeDeadlineSeconds) || has({_POD}.activeDeadlineSeconds)"),
        "HF119": ("objects", "has(j.ttlSecondsAfterFinished)"),
        "HF303": ("takeable", f"{_POD}.?priorityClassName.orValue('') != ''"),
    }


def _make_policy(
    name: str,
    version: str,
    plural: str,
    variables: list[Body],
    conditions: dict[str, tuple[str, str]],
) -> Body:
    validations: list[Body] = []
    for rule_id, (variable, condition) in conditions.items():
        is_right = _passes("", rule_id, variable, condition)
        was_right = _passes(_OLD, rule_id, variable, condition)
        expression = f"{is_right} || !({was_right})"
        validations.append(
            {
                "expression": expression,
                "message": _make_message(rule_id),
            }
        )
    is_kueue = _is_requested_by([f"system:serviceaccount:{NAMESPACE_KUEUE}:"])
    spec = {
        # A policy that cannot be evaluated stops no job.
        "failurePolicy": "Ignore",
        "matchConstraints": {"resourceRules": [_make_resource_rule(version, plural)]},
        # What JobSet makes was judged as its owner. Kueue adds the selectors of a flavor to a Job
        # that it starts: refused, the Job would wait for ever, and its author could not tell.
        "matchConditions": [
            {"name": "not-by-the-owner", "expression": f"!({_is_made_by_controller()})"},
            {"name": "not-by-kueue", "expression": f"!({is_kueue})"},
            {"name": "not-deleted", "expression": "!has(object.metadata.deletionTimestamp)"},
        ],
        "variables": variables,
        "validations": validations,
    }
    return _make_object("ValidatingAdmissionPolicy", name, spec)


def _passes(prefix: str, rule_id: str, variable: str, condition: str) -> str:
    """Writes CEL that is true if every spec of a list passes, or if the finding is accepted."""
    reasons: list[str] = []
    # A Job that states the default grace period breaks HF101; the server finds HF102.
    for name in (rule_id, "HF101") if rule_id == "HF102" else (rule_id,):
        reasons.append(f"a[?{_cel(ignores.ANNOTATION + name)}].orValue('').trim() != ''")
    is_accepted = f"variables.{prefix}annotations.exists(a, {' || '.join(reasons)})"
    return f"{is_accepted} || variables.{prefix}{variable}.all(j, {condition})"


def _is_made_by_controller() -> str:
    """Writes CEL that is true if the request comes from the controller of the object's owner."""
    options: list[str] = []
    for kind, (group, users) in _JOB_CONTROLLERS.items():
        is_owner = (
            f"o.kind == {_cel(kind)} && o.apiVersion.startsWith({_cel(group + '/')})"
            " && o.?controller.orValue(false)"
        )
        has_owner = f"object.metadata.?ownerReferences.orValue([]).exists(o, {is_owner})"
        options.append(f"({_is_requested_by(users)}) && {has_owner}")
    return " || ".join(options)


def _is_requested_by(prefixes: list[str]) -> str:
    """Writes CEL that is true if the name of the requesting user begins with one of these."""
    options = [f"request.userInfo.username.startsWith({_cel(prefix)})" for prefix in prefixes]
    return " || ".join(options)


def _make_resource_rule(version: str, *plurals: str) -> Body:
    group, _, api_version = version.rpartition("/")
    return {
        "apiGroups": [group],
        "apiVersions": [api_version],
        "operations": ["CREATE", "UPDATE"],
        "resources": [*plurals],
    }


def _make_message(rule_id: str) -> str:
    rule = all_rules()[rule_id]
    # The server cannot tell a Job that states the default from one that states nothing.
    what = rule.what.rstrip(".") + _DEFAULT_NOTES.get(rule_id, "") + "."
    return f"{rule.name}: {what} Fix: {rule.fix}."


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
    name = f"{_label(contract.LABEL_PROVISIONING)} == {_cel(provisioning)}"
    return f"({_label(key)} == 'true' || {name})"


def _cel(value: object) -> str:
    """Writes a constant: JSON of strings, numbers, lists and maps is CEL."""
    return json.dumps(value, sort_keys=True)


# The scheduler's arithmetic of holdfast.lint.placement, for node selectors and tolerations.
_SELECTOR = f"{_POD}.?nodeSelector.orValue({{}})"
_TOLERATIONS = f"{_POD}.?tolerations.orValue([])"
_MEANS_FLEX = _is_provisioned("flex-start", contract.LABEL_FLEX_START)
_HAS_GPUS = f"{_POD}.containers.exists(c, c.?resources.?limits[?{_cel(GPU_RESOURCE)}].hasValue())"
_IS_JUDGED = f"(k in {_cel(JUDGED_LABELS)} || !{_cel(UNJUDGED_LABELS)}.exists(u, k.startsWith(u)))"
_IS_SELECTED = (
    f"{_SELECTOR}.all(k, k == {_cel(contract.LABEL_ZONE)} ? {_SELECTOR}[k] in variables.zones[p]"
    f" : !{_IS_JUDGED} || variables.labels[p][?k].orValue('') == {_SELECTOR}[k])"
)
_MATCHING = (
    f"variables.labels.filter(p, ({_MEANS_FLEX} || !(p in variables.requested_offers))"
    f" && {_IS_SELECTED})"
)
_IS_TOLERATED = (
    f"{_TOLERATIONS}.exists(t, t.?effect.orValue('') in ['', x.effect]"
    " && (t.?operator.orValue('') == 'Exists' ? t.?key.orValue('') in ['', x.key]"
    " : t.?key.orValue('') == x.key && t.?value.orValue('') == x.value))"
)
_IS_GPU_TAINT = f"x.key == {_cel(GPU_TAINT.key)}"
_REACHED = (
    f"j.matching.filter(p, variables.taints[p].all(x, ({_HAS_GPUS} && {_IS_GPU_TAINT})"
    f" || {_IS_TOLERATED}))"
)
_IS_ADMITTED = (
    f"{_SELECTOR}.size() == 0 || j.matching.size() == 0"
    f" || j.matching.exists(p, variables.taints[p].all(x, {_IS_GPU_TAINT} || {_IS_TOLERATED}))"
)
# The offers where the pod can run; if there are none, those that its selectors match.
_OFFERS = f"(j.reached.size() > 0 || {_SELECTOR}.size() == 0 ? j.reached : j.matching)"
_ALLOWED_SPOT = "j.offers.filter(p, p in variables.windows)"
_SPOT_OFFERS = f"({_ALLOWED_SPOT}.size() > 0 ? {_ALLOWED_SPOT} : variables.windows.map(p, p))"
_IS_ON_FLEX = (
    f"{_MEANS_FLEX} || (j.offers.size() > 0 && j.offers.all(p, p in variables.flex_offers))"
)
_IS_TIED_TO_SPOT = (
    f"({_SELECTOR}.size() > 0 && j.matching.size() > 0"
    f" && j.matching.all(p, p in variables.windows))"
)
_NAMES_SPOT = " || ".join(
    f"{_label(key)} in variables.spot_values"
    for key in (contract.LABEL_POOL_CLASS, contract.LABEL_NODEPOOL)
)
_TOLERATES_SPOT = f"{_TOLERATIONS}.exists(t, t.?key.orValue('') in {_cel(sorted(SPOT_TAINT_KEYS))})"
_IS_ON_SPOT = (
    f"!{_MEANS_FLEX} && ({_is_provisioned('spot', contract.LABEL_SPOT)} || {_TOLERATES_SPOT}"
    f" || {_NAMES_SPOT} || {_IS_TIED_TO_SPOT})"
)
