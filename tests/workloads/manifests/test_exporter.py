"""Exporter and mover: one watches, the other acts, and each may do what its code does and no more."""

from dataclasses import replace
from urllib.parse import quote

from holdfast.controllers import lease, watch
from holdfast.manifests.render_context import RenderContext
from holdfast.mover import cluster_view, main
from holdfast.vocabulary.environment import ENV_DATABASE
from holdfast.vocabulary.kubernetes import LABEL_NAME
from holdfast.vocabulary.roles import JOB_NAMESPACES, NAMESPACE_MONITORING, NAMESPACE_SERVING
from tests.platforms import load
from tests.workloads.manifests.rendered import Body, bodies, named, variables, workloads
from workloads.manifests import faulty_nodes, platform_jobs

Grant = tuple[str, str, str, str, str]
"""Namespace or nothing, group, resource, name or nothing, verb."""
EVERYWHERE = ""


def granted(env: str, account: str) -> set[Grant]:
    """Everything that the account may do, by what is rendered."""
    found: set[Grant] = set()
    for binding in (b for b in bodies(env) if b["kind"] in ("ClusterRoleBinding", "RoleBinding")):
        if any(
            (s["name"], s["namespace"]) == (account, NAMESPACE_MONITORING)
            for s in binding["subjects"]
        ):
            reference = binding["roleRef"]
            space = binding["metadata"].get("namespace", EVERYWHERE)
            role = named(env, reference["kind"], reference["name"], space or None)
            found |= {grant for rule in role["rules"] for grant in grants(space, rule)}
    return found


def grants(space: str, rule: Body) -> set[Grant]:
    return {
        (space, group, resource, name, verb)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def watching(kinds: list[watch.Kind]) -> set[Grant]:
    """What the watches ask for."""
    found: set[Grant] = set()
    for kind in kinds:
        words = kind.path.strip("/").split("/")
        group = words[1] if words[0] == "apis" else ""
        space = words[words.index("namespaces") + 1] if "namespaces" in words else EVERYWHERE
        found |= {(space, group, words[-1], "", verb) for verb in ("list", "watch")}
    return found


def holding(name: str) -> set[Grant]:
    verbs = (("", "create"), (name, "get"), (name, "update"))
    return {(NAMESPACE_MONITORING, "coordination.k8s.io", "leases", of, verb) for of, verb in verbs}


def test_the_exporter_reads_what_it_watches_and_changes_nothing_but_its_lease(env: str) -> None:
    found = granted(env, "exporter")
    own = holding(lease.EXPORTER)
    assert {verb for *_, verb in found - own} <= {"get", "list", "watch"}
    assert found == watching([*watch.KINDS, *watch.QUEUED]) | own


def test_the_mover_moves_jobs_where_they_run_and_touches_nothing_else(env: str) -> None:
    watched = [kind for kind in watch.KINDS if kind.held in main.WATCHED]
    acts = set()
    for space in JOB_NAMESPACES:
        for group, resource, verb in (
            ("batch", "jobs", "patch"),
            ("jobset.x-k8s.io", "jobsets", "patch"),
            ("kueue.x-k8s.io", "workloads", "list"),
            ("kueue.x-k8s.io", "workloads", "delete"),
            ("kueue.x-k8s.io", "workloads", "patch"),
            ("", "events", "create"),
            ("", "pods", "delete"),
            ("", "pods/status", "patch"),
        ):
            acts.add((space, group, resource, "", verb))
    acts |= {("default", "", "events", "", "create")}  # about nodes
    assert granted(env, "mover") == watching([*watched, *cluster_view.ending()]) | acts | holding(
        lease.MOVER
    )


def test_only_where_it_may_replace_nodes_it_has_rights_on_them() -> None:
    platform = load("example")
    lets = replace(platform, security=replace(platform.security, faulty_nodes_per_hour=2))
    before, after = ([*faulty_nodes.objects(RenderContext(each))] for each in (platform, lets))
    more = []
    for body in after:
        if body not in before and body["kind"] in ("ClusterRole", "Role"):
            more.append(body)
    found = set()
    for b in more:
        for r in b["rules"]:
            found.add((b["metadata"].get("namespace"), *map(tuple, (r["resources"], r["verbs"]))))
    evicting = set()
    for space in (*JOB_NAMESPACES, NAMESPACE_SERVING):
        evicting.add((space, ("pods/eviction",), ("create",)))
    assert found == evicting | {(None, ("nodes",), ("patch", "delete"))}
    (container,) = platform_jobs.mover(RenderContext(lets))["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["command"][-2:] == ["--faulty-nodes-per-hour", "2"]
    none = replace(lets, security=replace(lets.security, gpu_exporter=False))
    assert [*faulty_nodes.objects(RenderContext(none))] == []


def test_nothing_else_of_the_namespace_has_rights(env: str) -> None:
    given = set()
    for binding in bodies(env):
        if binding["kind"] in ("ClusterRoleBinding", "RoleBinding"):
            for subject in binding["subjects"]:
                if subject.get("namespace") == NAMESPACE_MONITORING:
                    given.add(subject["name"])
    assert given == {"exporter", "mover"}


def test_each_runs_once_on_the_system_pool_under_its_own_account(env: str) -> None:
    for name in ("exporter", "mover"):
        spec = named(env, "Deployment", name, NAMESPACE_MONITORING)["spec"]
        pod = spec["template"]["spec"]
        assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
        assert (pod["serviceAccountName"], pod["nodeSelector"]) == (
            name,
            load(env).pool("system").selector(),
        )
        budget = named(env, "PodDisruptionBudget", name, NAMESPACE_MONITORING)["spec"]
        assert (
            budget["selector"] == {"matchLabels": {LABEL_NAME: name}}
            and budget["maxUnavailable"] == 1
        )


def test_where_there_is_a_database_it_reads_the_backlog_that_the_autoscaler_follows(
    env: str,
) -> None:
    """Else the autoscaler of the batch workers waits for a series that nobody writes."""
    (template,) = (t for body, t in workloads(env) if body["metadata"]["name"] == "exporter")
    uri = variables(template).get(ENV_DATABASE, {}).get("value", "")
    assert bool(uri) is bool(load(env).database) is ("initContainers" in template["spec"])
    assert not uri or quote(load(env).database.users["exporter"], safe="") in uri
