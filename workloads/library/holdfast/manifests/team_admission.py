"""Limits of a team's people that RBAC cannot express: the API server refuses what would affect
other teams.

The policies apply in namespaces of teams, to people who may not change the namespace's quota.
Controllers and the platform team are exempt.
"""

# Why it is so: infra/decisions/0069, and 0185 for services.

import json
from collections.abc import Iterator, Sequence

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
    SERVICE_PRIORITIES,
    api_group,
)
from holdfast.vocabulary.pools import GPU_RESOURCE
from holdfast.vocabulary.serving import PORT, PROXY_METRICS_PORT

ADMISSION = "admissionregistration.k8s.io/v1"
JOB_PRIORITIES = (PRIORITY_SPOT, PRIORITY_FLEX)
"""Priority classes that pods of a team's jobs may use."""
SYSTEM_PRIORITIES = ("system-cluster-critical", "system-node-critical")
PODS_PER_GPU = 8
"""A replica, two proxies and two routers, and room for their roll-outs."""
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
_OTHER_NAMESPACE = "has(p.namespaceSelector) && !has(p.podSelector) && !has(p.ipBlock)"
_SERVICE_PORTS = (
    "r.?ports.orValue([]).size() > 0 && r.ports.all(o, !has(o.endPort) &&"
    f" string(o.?port.orValue('')) in ['{PORT}', '{PROXY_METRICS_PORT}'])"
)


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
    within_the_quota = (
        f"!{_REQUESTS_GPU} || {_make_priority_check(SERVICE_PRIORITIES)}",
        (
            "a Deployment with GPUs would run past the team's queues. Fix: use a Job or a JobSet"
            f" with a queue, or for a service priority {' or '.join(SERVICE_PRIORITIES)}, whose"
            " GPUs the quota `services` counts."
        ),
    )
    yield from _make_pod_policy(
        JOB_API, "jobs", "spec.template", "[object.spec.template.spec]", queued, by_the_queue
    )
    groups = "object.spec.replicatedJobs.map(r, r.template.spec.template.spec)"
    yield from _make_pod_policy(
        JOBSET_API, "jobsets", "spec.replicatedJobs", groups, queued, by_the_queue
    )
    yield from _make_pod_policy(
        "apps/v1",
        "deployments",
        "spec.template",
        "[object.spec.template.spec]",
        within_the_quota,
        priorities=(*JOB_PRIORITIES, *SERVICE_PRIORITIES),
    )
    yield from _services()
    yield from _network_policies()
    yield from _workloads()
    yield from _platform_objects()


def priority_quotas(namespace: str, service_gpus: int) -> Iterator[Body]:
    """Builds quotas of pods by priority. Unlike the policies, they also stop pods that a controller
    creates.
    """
    allowed = JOB_PRIORITIES
    if service_gpus:
        allowed += SERVICE_PRIORITIES
        hard = {
            f"requests.{GPU_RESOURCE}": str(service_gpus),
            "pods": str(PODS_PER_GPU * service_gpus),
        }
        yield _quota("services", namespace, SERVICE_PRIORITIES, hard)
    reserved = [name for name in PRIORITIES if name not in allowed]
    yield _quota("reserved-priorities", namespace, (*reserved, *SYSTEM_PRIORITIES), {"pods": "0"})


def _quota(name: str, namespace: str, priorities: Sequence[str], hard: dict[str, str]) -> Body:
    scope = {
        "operator": "In",
        "scopeName": "PriorityClass",
        "values": [*priorities],
    }
    spec = {
        "hard": hard,
        "scopeSelector": {"matchExpressions": [scope]},
    }
    return manifest("v1", "ResourceQuota", meta(name, namespace), spec=spec)


def _make_priority_check(priorities: Sequence[str]) -> str:
    """Returns an expression that is true if all pods use one of these priority classes."""
    names = json.dumps([*priorities])
    return f"variables.pods.all(p, p.?priorityClassName.orValue('') in {names})"


def _make_pod_policy(
    version: str,
    plural: str,
    judged: str,
    pods: str,
    *gpus: tuple[str, str],
    priorities: Sequence[str] = JOB_PRIORITIES,
) -> Iterator[Body]:
    """Makes the policy of a kind with pod templates.

    An update that changes neither them nor the queue, and starts nothing, passes: it may suspend a
    job that is older than the policy.
    """
    changed = f"request.operation == 'CREATE' || object.{judged} != oldObject.{judged}"
    changed += f" || object{_QUEUE} != oldObject{_QUEUE} || ({_STARTS})"
    allowed = _make_priority_check(["", *priorities])
    message = (
        f"pods of a team use priority {' or '.join(priorities)}. Fix: change priorityClassName."
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
    ingress = f"({_SAME_NAMESPACE}) || (({_OTHER_NAMESPACE}) && {_SERVICE_PORTS})"
    directions = (
        ("ingress", "from", ingress),
        ("egress", "to", _SAME_NAMESPACE),
    )
    rules: list[str] = []
    for direction, peers, allowed in directions:
        rules.append(
            f"object.spec.?{direction}.orValue([]).all(r, r.?{peers}.orValue([]).size() > 0 &&"
            f" r.{peers}.all(p, {allowed}))"
        )
    message = (
        "a team's NetworkPolicy opens pods of its namespace to each other only, and their ports"
        f" {PORT} and {PROXY_METRICS_PORT} to other namespaces. Fix: give each rule peers with a"
        " podSelector and nothing else, or ask the platform team."
    )
    yield from _policy(
        "networkpolicies",
        [_resources("networking.k8s.io/v1", "CREATE", "UPDATE", plurals=["networkpolicies"])],
        [(" && ".join(rules), message)],
        conditions={"not-deleted": _NOT_DELETED},
    )


def _workloads() -> Iterator[Body]:
    """Limits patches of a Workload, which could also raise its priority: RBAC knows no fields."""
    names = ("podSets", "queueName", "priority", "priorityClassRef", "maximumExecutionTimeSeconds")
    conditions = [f"object.spec.?{name} == oldObject.spec.?{name}" for name in names]
    conditions.append("object.metadata.?labels == oldObject.metadata.?labels")
    before = "oldObject.metadata.?annotations.orValue({})"
    after = "object.metadata.?annotations.orValue({})"
    conditions.append(f"{after}.all(key, {before}[?key] == optional.of({after}[key]))")
    # A stop removes the mark by which the mover would queue again a gang without its nodes.
    mark = f"key == '{ANNOTATION_QUEUED_AGAIN}'"
    conditions.append(f"{before}.all(key, {mark} || key in {after})")
    yield from _policy(
        "workloads",
        [_resources(KUEUE_API, "UPDATE", plurals=["workloads"])],
        [
            (
                " && ".join(conditions),
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
    is_foreign = f"oldObject{label} != '{PLATFORM_HALF}'"
    rules: list[Body] = []
    for version, plurals in kinds.items():
        rules.append(_resources(version, "UPDATE", "DELETE", plurals=plurals))
    yield from _policy(
        "platform-objects",
        rules,
        [
            (
                is_foreign,
                f"objects with the label {LABEL_HALF}={PLATFORM_HALF} belong to the platform team.",
            )
        ],
    )


def _list_expressions(expressions: dict[str, str]) -> list[Body]:
    """Returns named expressions as a policy lists them."""
    entries: list[Body] = []
    for name, expression in expressions.items():
        entries.append({"name": name, "expression": expression})
    return entries


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
    refusals: list[Body] = []
    for expression, message in validations:
        refusals.append({"expression": expression, "message": message})
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": _list_expressions({"by-a-person": _BY_A_PERSON} | (conditions or {})),
        "validations": refusals,
    }
    if variables:
        spec["variables"] = _list_expressions(variables)
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
