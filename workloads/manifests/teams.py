"""Builds the namespaces of teams and the rights of their people."""

from collections.abc import Iterator

from kubernetes import client

from holdfast.manifests import team_admission
from holdfast.manifests.rbac import bind_groups
from holdfast.manifests.render_context import Body, RenderContext
from holdfast.manifests.serving_proxy import SERVER, watcher_account
from holdfast.platform.cluster import NAME
from holdfast.vocabulary.kubernetes import (
    AUTOSCALING_METRIC_API,
    JOB_API,
    JOBSET_API,
    KUEUE_API,
    LABEL_TEAM,
    MONITORING_API,
    PROVISIONING_API,
    SECRETS_API,
    api_group,
)
from holdfast.vocabulary.roles import JOB_ROLES, NAMESPACE_MONITORING, TEAM_PROXY
from workloads.manifests.tenancy import namespace, pod_security

READS = ("get", "list", "watch")
# Kinds that `holdfast submit` sends, by server-side apply.
SUBMITTED = {
    "": ("services", "configmaps"),
    "apps": ("deployments",),
    api_group(JOB_API): ("jobs",),
    api_group(JOBSET_API): ("jobsets",),
    "networking.k8s.io": ("networkpolicies",),
    "policy": ("poddisruptionbudgets",),
    api_group(SECRETS_API): ("secretproviderclasses",),
}
# Kinds that `holdfast submit` sends of a service in addition.
SERVED = {
    "autoscaling": ("horizontalpodautoscalers",),
    api_group(AUTOSCALING_METRIC_API): ("autoscalingmetrics",),
    api_group(MONITORING_API): ("podmonitorings",),
}
# Kinds that `list`, `explain` and `logs` read in addition.
READ = {
    "": ("pods", "pods/log", "events", "persistentvolumeclaims"),
    api_group(KUEUE_API): ("localqueues", "workloads"),
    api_group(PROVISIONING_API): ("provisioningrequests",),
}
# Kueue starts a suspended job again: to stop one, its Workload is set inactive (the library's
# team_admission.py guards the rest).
SUSPENDED = {api_group(KUEUE_API): ("workloads",)}
# `holdfast shell`: people who may start a pod in the namespace can run anything in it already.
ENTERED = {"": ("pods/exec",)}
# Kinds without a namespace: free GPUs and quotas explain why a job waits.
CAPACITY = {"": ("nodes",), api_group(KUEUE_API): ("clusterqueues",)}
PEOPLE = "holdfast-people"


def objects(context: RenderContext) -> Iterator[Body]:
    teams = context.platform.other_teams
    for team in teams:
        for name in team.namespaces:
            labels = pod_security("restricted") | {LABEL_TEAM: team.name}
            serves = name in context.platform.service_namespaces
            account_roles = (*JOB_ROLES, SERVER) if serves else JOB_ROLES
            yield from namespace(context, name, account_roles, labels)
            yield from team_admission.priority_quotas(name, team.service_gpus if serves else 0)
            if serves:
                yield from watcher_account(TEAM_PROXY, TEAM_PROXY, name)
            if team.members:
                submitted = SUBMITTED | SERVED if serves else SUBMITTED
                rules = [
                    *_rules(submitted, *READS, "create", "patch", "delete"),
                    *_rules(READ, *READS),
                    *_rules(SUSPENDED, "patch"),
                    *_rules(ENTERED, "get", "create"),
                ]
                yield from bind_groups("Role", PEOPLE, name, rules, [team.members])
    groups = sorted({team.members for team in teams if team.members})
    if groups:
        document = client.V1PolicyRule(
            api_groups=[""],
            resources=["configmaps"],
            resource_names=[NAME],
            verbs=["get"],
        )
        yield from bind_groups("Role", PEOPLE, NAMESPACE_MONITORING, [document], groups)
        yield from bind_groups("ClusterRole", PEOPLE, None, _rules(CAPACITY, *READS), groups)
    if teams:
        yield from team_admission.objects()


def _rules(kinds: dict[str, tuple[str, ...]], *verbs: str) -> list[client.V1PolicyRule]:
    rules: list[client.V1PolicyRule] = []
    for group, resources in kinds.items():
        rule = client.V1PolicyRule(
            api_groups=[group],
            resources=[*resources],
            verbs=[*verbs],
        )
        rules.append(rule)
    return rules
