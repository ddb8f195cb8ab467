"""The exporter's pod may do what its code does, and no more."""

from urllib.parse import quote

import pytest

from holdfast.contract.environment import ENV_DATABASE
from holdfast.exporter import ends, lease, watch
from holdfast.mover import cluster_api
from tests.platforms import load, names
from tests.workloads.manifests.rendered import Body, bodies, named, variables, workloads

NAMESPACE = "monitoring"


def granted(env: str) -> set[tuple[str, str, str, str]]:
    """(group, resource, name or nothing, verb) of everything that the exporter's account may do."""
    found: set[tuple[str, str, str, str]] = set()
    for binding in (b for b in bodies(env) if b["kind"] in ("ClusterRoleBinding", "RoleBinding")):
        if any((s["name"], s["namespace"]) == ("exporter", NAMESPACE) for s in binding["subjects"]):
            role = named(
                env, binding["roleRef"]["kind"], binding["roleRef"]["name"], binding["metadata"].get("namespace")
            )
            found |= {grant for rule in role["rules"] for grant in grants(rule)}
    return found


def grants(rule: Body) -> set[tuple[str, str, str, str]]:
    return {
        (group, resource, name, verb)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("env", names())
def test_it_may_hold_its_lease_and_no_other(env: str) -> None:
    leases = {(name, verb) for _, resource, name, verb in granted(env) if resource == "leases"}
    assert leases == {("", "create"), (lease.NAME, "get"), (lease.NAME, "update")}


@pytest.mark.parametrize("env", names())
def test_it_may_watch_what_it_watches_and_change_nothing_but_jobs_of_ours(env: str) -> None:
    wanted = set()
    for kind in (*watch.KINDS, *watch.QUEUED, *watch.ENDING):
        group = kind.path.split("/")[2] if kind.path.startswith("/apis/") else ""
        wanted |= {(group, kind.path.rsplit("/", 1)[-1], "", verb) for verb in ("list", "watch")}
    receipts = {("batch", "jobs", "", "patch"), ("jobset.x-k8s.io", "jobsets", "", "patch")}
    moves = {("kueue.x-k8s.io", "workloads", "", "delete"), ("", "events", "", "create")}
    assert {grant for grant in granted(env) if grant[1] != "leases"} == wanted | receipts | moves


@pytest.mark.parametrize("env", names())
def test_it_may_write_receipts_only_where_jobs_of_ours_run(env: str) -> None:
    roles = [
        body for body in bodies(env) if body["kind"] in ("Role", "ClusterRole") and "exporter" in bound_to(env, body)
    ]
    patching = {
        role["metadata"].get("namespace", "every namespace")
        for role in roles
        if any({"patch", "delete"} & {*rule["verbs"]} for rule in role["rules"])
    }
    assert patching == ends.NAMESPACES == {*cluster_api.NAMESPACES}


def bound_to(env: str, role: Body) -> set[str]:
    """Accounts of the monitoring namespace that a binding gives this role."""
    where = role["metadata"].get("namespace")
    return {
        subject["name"]
        for binding in bodies(env)
        if binding["kind"] == f"{role['kind']}Binding" and binding["metadata"].get("namespace") == where
        if binding["roleRef"]["name"] == role["metadata"]["name"]
        for subject in binding["subjects"]
        if subject["namespace"] == NAMESPACE
    }


@pytest.mark.parametrize("env", names())
def test_where_there_is_a_database_it_reads_the_backlog_that_the_autoscaler_follows(env: str) -> None:
    """Else the autoscaler of the batch workers waits for a series that nobody writes."""
    (template,) = (t for body, t in workloads(env) if body["metadata"]["name"] == "exporter")
    uri = variables(template).get(ENV_DATABASE, {}).get("value", "")
    assert bool(uri) is bool(load(env).database) is ("initContainers" in template["spec"])
    assert not uri or quote(load(env).database.users["exporter"], safe="") in uri
