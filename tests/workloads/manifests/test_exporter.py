"""Tests that exporter and mover have exactly the rights that their code uses."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from urllib.parse import quote

from holdfast.controllers import lease, watch
from holdfast.manifests.render_context import RenderContext
from holdfast.mover import cluster_view, main
from holdfast.platform import cluster
from holdfast.vocabulary.environment import ENV_DATABASE
from holdfast.vocabulary.kubernetes import LABEL_NAME
from holdfast.vocabulary.roles import JOB_NAMESPACES, NAMESPACE_MONITORING, NAMESPACE_SERVING
from tests.platforms import load
from tests.workloads.manifests.rendered import Body, find_object, list_kinds, variables
from workloads.manifests import faulty_nodes, platform_jobs

Grant = tuple[str, str, str, str, str]
"""Namespace or nothing, group, resource, name or nothing, verb."""
EVERYWHERE = ""


def list_grants(env: str, account: str) -> set[Grant]:
    """Returns everything that an account may do, by what is rendered."""
    grants: set[Grant] = set()
    for binding in list_kinds(env, "ClusterRoleBinding", "RoleBinding"):
        for subject in binding["subjects"]:
            if (subject["name"], subject["namespace"]) == (account, NAMESPACE_MONITORING):
                reference = binding["roleRef"]
                namespace = binding["metadata"].get("namespace", EVERYWHERE)
                role = find_object(env, reference["kind"], reference["name"], namespace or None)
                for rule in role["rules"]:
                    grants.update(expand_rule(namespace, rule))
    return grants


def expand_rule(namespace: str, rule: Body) -> Iterator[Grant]:
    names = rule.get("resourceNames", [""])
    for grant in product(rule["apiGroups"], rule["resources"], names, rule["verbs"]):
        group, resource, name, verb = grant
        yield namespace, group, resource, name, verb


def list_watch_grants(kinds: list[watch.Kind]) -> set[Grant]:
    """Returns the grants that the watches need."""
    grants: set[Grant] = set()
    for kind in kinds:
        words = kind.path.strip("/").split("/")
        group = words[1] if words[0] == "apis" else ""
        namespace = words[words.index("namespaces") + 1] if "namespaces" in words else EVERYWHERE
        for verb in ("list", "watch"):
            grants.add((namespace, group, words[-1], "", verb))
    return grants


def list_lease_grants(name: str) -> set[Grant]:
    resource = (NAMESPACE_MONITORING, "coordination.k8s.io", "leases")
    return {
        (*resource, "", "create"),
        (*resource, name, "get"),
        (*resource, name, "update"),
    }


def test_exporter_only_reads_and_changes_its_lease(env: str) -> None:
    grants = list_grants(env, "exporter")
    lease_grants = list_lease_grants(lease.EXPORTER)
    assert {verb for *_, verb in grants - lease_grants} <= {"get", "list", "watch"}
    expected = list_watch_grants([*watch.KINDS, *watch.QUEUED]) | lease_grants
    if load(env).security.ratings_every_s:
        _, document = cluster.PATH.rsplit("/", 1)
        expected.add((NAMESPACE_MONITORING, "", "configmaps", document, "get"))
    assert grants == expected


def test_exporter_asks_google_only_where_the_environment_says_so() -> None:
    platform = load("example")
    for every_s in (0, 900):
        security = replace(platform.security, ratings_every_s=every_s)
        context = RenderContext(replace(platform, security=security))
        template = platform_jobs.exporter(context)["spec"]["template"]
        (container,) = template["spec"]["containers"]
        assert ("--ratings-every-s" in container["command"]) is bool(every_s)
        names = {body["metadata"]["name"] for body in platform_jobs.objects(context)}
        assert ("holdfast-exporter-platform" in names) is bool(every_s)


def test_mover_rights_match_its_actions(env: str) -> None:
    kinds = [kind for kind in watch.KINDS if kind.held in main.WATCHED]
    grants = list_watch_grants([*kinds, *cluster_view.list_job_kinds()]) | list_lease_grants(
        lease.MOVER
    )
    for namespace in JOB_NAMESPACES:
        for group, resource, verb in (
            ("batch", "jobs", "patch"),
            ("jobset.x-k8s.io", "jobsets", "patch"),
            ("kueue.x-k8s.io", "workloads", "list"),
            ("kueue.x-k8s.io", "workloads", "delete"),
            ("kueue.x-k8s.io", "workloads", "patch"),
            ("kueue.x-k8s.io", "localqueues", "list"),
            ("", "events", "create"),
            ("", "pods", "delete"),
            ("", "pods/status", "patch"),
        ):
            grants.add((namespace, group, resource, "", verb))
    grants.add(("default", "", "events", "", "create"))  # events about nodes
    for resource in ("clusterqueues", "resourceflavors"):
        grants.add((EVERYWHERE, "kueue.x-k8s.io", resource, "", "list"))
    assert list_grants(env, "mover") == grants


def test_mover_has_node_rights_only_if_it_may_replace_nodes() -> None:
    platform = load("example")
    security = replace(platform.security, faulty_nodes_per_hour=2)
    context = RenderContext(replace(platform, security=security))
    default_objects = list(faulty_nodes.objects(RenderContext(platform)))
    rules: set[tuple[object, ...]] = set()
    for body in faulty_nodes.objects(context):
        if body not in default_objects and body["kind"] in ("ClusterRole", "Role"):
            namespace = body["metadata"].get("namespace")
            for rule in body["rules"]:
                rules.add((namespace, tuple(rule["resources"]), tuple(rule["verbs"])))
    expected: set[tuple[object, ...]] = {(None, ("nodes",), ("patch", "delete"))}
    for namespace in (*JOB_NAMESPACES, NAMESPACE_SERVING):
        expected.add((namespace, ("pods/eviction",), ("create",)))
    assert rules == expected
    template = platform_jobs.mover(context)["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["command"][-2:] == ["--faulty-nodes-per-hour", "2"]
    without_exporter = replace(platform, security=replace(security, gpu_exporter=False))
    assert list(faulty_nodes.objects(RenderContext(without_exporter))) == []


def test_no_other_monitoring_account_has_rights(env: str) -> None:
    accounts: set[str] = set()
    for binding in list_kinds(env, "ClusterRoleBinding", "RoleBinding"):
        for subject in binding["subjects"]:
            if subject.get("namespace") == NAMESPACE_MONITORING:
                accounts.add(subject["name"])
    assert accounts == {"exporter", "mover"}


def test_exporter_and_mover_run_once_on_the_system_pool(env: str) -> None:
    for name in ("exporter", "mover"):
        spec = find_object(env, "Deployment", name, NAMESPACE_MONITORING)["spec"]
        pod = spec["template"]["spec"]
        assert spec["replicas"] == 1 and spec["strategy"] == {"type": "Recreate"}
        assert pod["serviceAccountName"] == name
        assert pod["nodeSelector"] == load(env).pool("system").selector()
        budget = find_object(env, "PodDisruptionBudget", name, NAMESPACE_MONITORING)["spec"]
        assert budget["selector"] == {"matchLabels": {LABEL_NAME: name}}
        assert budget["maxUnavailable"] == 1


def test_exporter_reads_the_backlog_where_there_is_a_database(env: str) -> None:
    """Ensures that the series for the autoscaler of batch workers is written."""
    template = find_object(env, "Deployment", "exporter")["spec"]["template"]
    uri = variables(template).get(ENV_DATABASE, {}).get("value", "")
    assert bool(uri) is bool(load(env).database) is ("initContainers" in template["spec"])
    assert not uri or quote(load(env).database.users["exporter"], safe="") in uri
