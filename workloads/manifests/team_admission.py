"""Limits of a team's people that RBAC cannot express: the API server refuses what would affect
other teams.

The policies apply in namespaces of teams, to people who may not change the namespace's quota.
Controllers and the platform team are exempt.
"""

# Why it is so: infra/decisions/0069.

import json
from collections.abc import Iterator

from holdfast.manifests.render_context import Body, manifest, meta
from holdfast.vocabulary.capacity import ANNOTATION_QUEUED_AGAIN
from holdfast.vocabulary.kubernetes import (
    JOB_API,
    JOBSET_API,
    KUEUE_API,
    LABEL_HALF,
    LABEL_QUEUE,
    LABEL_TEAM,
    PLATFORM_HALF,
    PRIORITIES,
    PRIORITY_FLEX,
    PRIORITY_SPOT,
    api_group,
)
from holdfast.vocabulary.pools import GPU_RESOURCE

ADMISSION = "admissionregistration.k8s.io/v1"
JOB_PRIORITIES = (PRIORITY_SPOT, PRIORITY_FLEX)
"""Priority classes that a team's pods may use."""
RESERVED_PRIORITIES = (
    *(name for name in PRIORITIES if name not in JOB_PRIORITIES),
    "system-cluster-critical",
    "system-node-critical",
)
_EXEMPT = (
    "authorizer.group('').resource('resourcequotas').namespace(request.namespace)"
    ".check('update').allowed()"
)
_BY_A_PERSON = f"!request.userInfo.username.startsWith('system:') && !{_EXEMPT}"
_NOT_DELETED = "!has(object.metadata.deletionTimestamp)"
_QUEUE = f".metadata.?labels[?'{LABEL_QUEUE}'].orValue('')"
_REQUESTS_GPU = (
    "variables.pods.exists(p, (p.containers + p.?initContainers.orValue([])).exists(c,"
    f" c.?resources.?limits[?'{GPU_RESOURCE}'].hasValue() ||"
    f" c.?resources.?requests[?'{GPU_RESOURCE}'].hasValue()))"
)
_STARTED = "!object.spec.?suspend.orValue(false)"
_STARTS = f"{_STARTED} && (request.operation == 'CREATE' || oldObject.spec.?suspend.orValue(false))"
_SAME_NAMESPACE = "has(p.podSelector) && !has(p.namespaceSelector) && !has(p.ipBlock)"


def objects() -> Iterator[Body]:
    queued = (
        f"!{_REQUESTS_GPU} || object{_QUEUE} != ''",
        (
            "a job with GPUs needs a queue, which keeps it within the team's quota. Fix: set the"
            f" label {LABEL_QUEUE}."
        ),
    )
    # Kueue suspends what a person starts, but only after pods exist.
    by_the_queue = (
        f"!{_REQUESTS_GPU} || !({_STARTS})",
        (
            "a job with GPUs is started by its queue. Fix: submit it with spec.suspend true, and"
            " leave it to the queue."
        ),
    )
    without_gpus = (
        f"!{_REQUESTS_GPU}",
        (
            "a Deployment with GPUs would run past the team's queues. Fix: use a Job or a JobSet"
            " with a queue."
        ),
    )
    yield from _of_pods(
        JOB_API, "jobs", "spec.template", "[object.spec.template.spec]", queued, by_the_queue
    )
    groups = "object.spec.replicatedJobs.map(r, r.template.spec.template.spec)"
    yield from _of_pods(JOBSET_API, "jobsets", "spec.replicatedJobs", groups, queued, by_the_queue)
    yield from _of_pods(
        "apps/v1", "deployments", "spec.template", "[object.spec.template.spec]", without_gpus
    )
    yield from _services()
    yield from _network_policies()
    yield from _workloads()
    yield from _platform_objects()


def reserved_priorities(namespace: str) -> Body:
    """A quota of no pods. Other than the policies it also stops pods that a controller creates."""
    scope = {
        "operator": "In",
        "scopeName": "PriorityClass",
        "values": [*RESERVED_PRIORITIES],
    }
    spec = {
        "hard": {"pods": "0"},
        "scopeSelector": {"matchExpressions": [scope]},
    }
    return manifest("v1", "ResourceQuota", meta("reserved-priorities", namespace), spec=spec)


def _of_pods(
    version: str, plural: str, judged: str, pods: str, *gpus: tuple[str, str]
) -> Iterator[Body]:
    """For a kind with pod templates. An update that changes neither them nor the queue, and starts
    nothing, passes: it may suspend a job that is older than the policy.
    """
    changed = f"request.operation == 'CREATE' || object.{judged} != oldObject.{judged}"
    changed += f" || object{_QUEUE} != oldObject{_QUEUE} || ({_STARTS})"
    allowed = (
        "variables.pods.all(p, p.?priorityClassName.orValue('') in"
        f" {json.dumps(['', *JOB_PRIORITIES])})"
    )
    message = (
        f"pods of a team use priority {' or '.join(JOB_PRIORITIES)}. Fix: change priorityClassName."
    )
    yield from _policy(
        plural,
        [_resources(version, "CREATE", "UPDATE", plurals=[plural])],
        [(allowed, message), *gpus],
        conditions={"not-deleted": _NOT_DELETED, "changed": changed},
        variables={"pods": pods},
    )


def _services() -> Iterator[Body]:
    inside = (
        "object.spec.?type.orValue('ClusterIP') == 'ClusterIP' &&"
        " object.spec.?externalIPs.orValue([]).size() == 0"
    )
    yield from _policy(
        "services",
        [_resources("v1", "CREATE", "UPDATE", plurals=["services"])],
        [
            (
                inside,
                (
                    "a team's Service is reachable inside the cluster only. Fix: use type"
                    " ClusterIP, no externalIPs."
                ),
            )
        ],
        conditions={"not-deleted": _NOT_DELETED},
    )


def _network_policies() -> Iterator[Body]:
    rules = [
        f"object.spec.?{rules}.orValue([]).all(r, r.?{peers}.orValue([]).size() > 0 &&"
        f" r.{peers}.all(p, {_SAME_NAMESPACE}))"
        for rules, peers in (("ingress", "from"), ("egress", "to"))
    ]
    message = (
        "a team's NetworkPolicy opens pods of its namespace to each other only. Fix: give each rule"
        " peers with a podSelector and nothing else, or ask the platform team."
    )
    yield from _policy(
        "networkpolicies",
        [_resources("networking.k8s.io/v1", "CREATE", "UPDATE", plurals=["networkpolicies"])],
        [(" && ".join(rules), message)],
        conditions={"not-deleted": _NOT_DELETED},
    )


def _workloads() -> Iterator[Body]:
    """RBAC knows no fields: a patch of a Workload could also raise its priority."""
    names = ("podSets", "queueName", "priority", "priorityClassRef", "maximumExecutionTimeSeconds")
    same = [f"object.spec.?{name} == oldObject.spec.?{name}" for name in names]
    same.append("object.metadata.?labels == oldObject.metadata.?labels")
    before = "oldObject.metadata.?annotations.orValue({})"
    after = "object.metadata.?annotations.orValue({})"
    same.append(f"{after}.all(key, {before}[?key] == optional.of({after}[key]))")
    # A stop takes back what the mover would do with a gang that gave its nodes back.
    mark = f"key == '{ANNOTATION_QUEUED_AGAIN}'"
    same.append(f"{before}.all(key, {mark} || key in {after})")
    yield from _policy(
        "workloads",
        [_resources(KUEUE_API, "UPDATE", plurals=["workloads"])],
        [
            (
                " && ".join(same),
                "people of a team change spec.active of a Workload and nothing else.",
            )
        ],
    )


def _platform_objects() -> Iterator[Body]:
    kinds = {
        "v1": ["services"],
        "networking.k8s.io/v1": ["networkpolicies"],
        "policy/v1": ["poddisruptionbudgets"],
        "apps/v1": ["deployments"],
        JOB_API: ["jobs"],
        JOBSET_API: ["jobsets"],
    }
    label = f".metadata.?labels[?'{LABEL_HALF}'].orValue('')"
    own = f"oldObject{label} != '{PLATFORM_HALF}'"
    yield from _policy(
        "platform-objects",
        [
            _resources(version, "UPDATE", "DELETE", plurals=plurals)
            for version, plurals in kinds.items()
        ],
        [
            (
                own,
                f"objects with the label {LABEL_HALF}={PLATFORM_HALF} belong to the platform team.",
            )
        ],
    )


def _policy(
    name: str,
    rules: list[Body],
    validations: list[tuple[str, str]],
    *,
    conditions: dict[str, str] | None = None,
    variables: dict[str, str] | None = None,
) -> Iterator[Body]:
    """Denies in namespaces of teams."""
    named = f"holdfast-team-{name}"
    listed = {"by-a-person": _BY_A_PERSON} | (conditions or {})
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": [
            {"name": key, "expression": expression} for key, expression in listed.items()
        ],
        "validations": [
            {"expression": expression, "message": message} for expression, message in validations
        ],
    }
    if variables:
        spec["variables"] = [
            {"name": key, "expression": expression} for key, expression in variables.items()
        ]
    yield manifest(ADMISSION, "ValidatingAdmissionPolicy", meta(named), spec=spec)
    selector = {
        "namespaceSelector": {"matchExpressions": [{"key": LABEL_TEAM, "operator": "Exists"}]}
    }
    bound = {
        "policyName": named,
        "validationActions": ["Deny"],
        "matchResources": selector,
    }
    yield manifest(ADMISSION, "ValidatingAdmissionPolicyBinding", meta(named), spec=bound)


def _resources(version: str, *operations: str, plurals: list[str]) -> Body:
    group = api_group(version) if "/" in version else ""
    short = version.rpartition("/")[2]
    return {
        "apiGroups": [group],
        "apiVersions": [short],
        "operations": [*operations],
        "resources": plurals,
    }
