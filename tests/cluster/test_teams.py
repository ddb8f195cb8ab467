"""What the people of a team may do, asked of the real API server; and what their team may use, of
the real Kueue.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from holdfast.clients.api import Api, Object
from holdfast.manifests.render_context import RenderContext
from holdfast.vocabulary.kubernetes import LABEL_JOB_PRIORITY, name_job_priority
from holdfast.vocabulary.pools import GPU_RESOURCE
from infra import describe
from infra.environments.schema import Quota, Team
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.infra.samples import two_teams
from workloads.manifests.rendering import platform

pytestmark = pytest.mark.usefixtures("kueue")
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
GROUPS = (
    "/api/v1",
    "/apis/apps/v1",
    "/apis/batch/v1",
    "/apis/jobset.x-k8s.io/v1alpha2",
    "/apis/kueue.x-k8s.io/v1beta2",
    "/apis/networking.k8s.io/v1",
    "/apis/policy/v1",
    "/apis/rbac.authorization.k8s.io/v1",
)
SUBMITTED = {
    "jobs",
    "jobsets",
    "networkpolicies",
    "poddisruptionbudgets",
    "services",
    "configmaps",
    "deployments",
}
READ = SUBMITTED | {
    "pods",
    "pods/log",
    "events",
    "persistentvolumeclaims",
    "localqueues",
    "workloads",
}
EVERYWHERE = {"nodes", "clusterqueues"}
VERBS = (
    "get",
    "list",
    "create",
    "patch",
    "update",
    "delete",
    "deletecollection",
    "escalate",
    "bind",
)


def render_teams(teams: tuple[Team, ...], *kinds: str) -> list[Object]:
    """Renders the objects of these kinds in the namespaces of the teams."""
    environment = replace(two_teams(), teams=teams)
    bodies = platform(RenderContext(describe.platform(environment, {})))
    spaces = {space for team in teams for space in team.spaces} | {"monitoring"}
    selected = []
    for b in bodies:
        if b["kind"] in kinds and b["metadata"].get("namespace", "monitoring") in spaces:
            selected.append(b)
    bodies_of_spaces: list[Object] = []
    for b in selected:
        if b["kind"] != "Namespace" or b["metadata"]["name"] in spaces:
            bodies_of_spaces.append(b)
    return bodies_of_spaces


def may(
    api: Api,
    verb: str,
    group: str,
    resource: str,
    namespace: str,
    name: str = "",
    who: str = "vision",
) -> bool:
    resource, _, part = resource.partition("/")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": part,
        "namespace": namespace,
    }
    attributes |= {"name": name}
    spec = {
        "user": "ana@example.org",
        "groups": [f"{who}@example.org"],
        "resourceAttributes": attributes,
    }
    return api.create(REVIEWS, {"spec": spec})["status"]["allowed"]


def kinds(api: Api) -> Iterator[tuple[str, str]]:
    """API group and resource of all that the server has in GROUPS, subresources too."""
    for path in GROUPS:
        for resource in api.get(path)["resources"]:
            yield (
                path.removeprefix("/apis/").partition("/")[0] if path != "/api/v1" else "",
                resource["name"],
            )


def test_people_submit_and_read_in_their_namespace_and_nothing_else(api: Api) -> None:
    for body in render_teams(
        two_teams().teams, "Namespace", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"
    ):
        api.apply(api.path_of(body), body)
    # The API server learns of each kind of right separately.
    until("rights are in force", lambda: may(api, "get", "batch", "jobs", "vision"))
    until("rights of the cluster are in force", lambda: may(api, "get", "", "nodes", ""))
    until(
        "rights of the other team are in force",
        lambda: may(api, "create", "batch", "jobs", "speech-dev", who="speech"),
    )
    every = list(kinds(api))
    resources = {resource for _, resource in every}
    assert resources >= READ | EVERYWHERE | {
        "secrets",
        "pods/exec",
        "rolebindings",
    }
    allowed = set()
    for verb, (group, resource) in product(VERBS, every):
        if may(api, verb, group, resource, "vision"):
            allowed.add((verb, resource))
    assert allowed == {
        *product(("get", "list"), READ | EVERYWHERE),
        *product(("create", "patch", "delete"), SUBMITTED),
        ("patch", "workloads"),  # to stop a job; admission bounds what the patch changes
        ("get", "pods/exec"),  # a shell in a pod of the team's own namespace
        ("create", "pods/exec"),
    }
    for space in ("speech", "kube-system", ""):
        rights = set()
        for verb, (group, r) in product(("get", "list", "create", "delete"), every):
            if may(api, verb, group, r, space):
                rights.add((verb, r))
        assert rights == {*product(("get", "list"), EVERYWHERE)}, space
    assert may(api, "get", "", "configmaps", "monitoring", "holdfast-platform"), (
        "else no command knows the platform"
    )
    assert may(api, "create", "batch", "jobs", "speech-dev", who="speech")
    assert not may(api, "get", "batch", "jobs", "vision", who="speech")


def submit(api: Api, namespace: str, name: str, priority: str = "") -> None:
    need = {
        "cpu": "1",
        "memory": "1Gi",
        GPU_RESOURCE: "1",
    }
    container = {
        "name": "main",
        "image": "registry.k8s.io/pause",
        "resources": {"requests": need, "limits": need},
    }
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
    }
    meta: dict[str, Any] = {
        "name": name,
        "labels": {"kueue.x-k8s.io/queue-name": "spot"},
    }
    if priority:
        meta["labels"][LABEL_JOB_PRIORITY] = name_job_priority(priority)
    body = {
        "metadata": meta,
        "spec": {
            "suspend": True,
            "template": {"spec": pod},
        },
    }
    api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", body)


def list_running(api: Api, namespace: str) -> set[str]:
    names: set[str] = set()
    for job in api.items(f"/apis/batch/v1/namespaces/{namespace}/jobs"):
        if not job["spec"]["suspend"]:
            names.add(job["metadata"]["name"])
    return names


def running(api: Api, namespace: str) -> int:
    return len(list_running(api, namespace))


@contextmanager
def sharing(world: World, api: Api, **of_one: Any) -> Generator[list[str]]:
    """Two teams with two of four GPUs each, in a cohort of their own; yields their namespaces.
    `of_one`: more fields of the first.
    """
    quotas = (Quota(source="nvidia-l4", gpus=2),)
    suffix = world.name.removeprefix("t-")
    first = Team(name=f"one-{suffix}", quotas=quotas)
    other = Team(name=f"other-{suffix}", quotas=quotas)
    first = replace(first, **of_one)
    spaces = [first.spaces[0], other.spaces[0]]
    bodies = []
    for body in render_teams(
        (first, other), "Namespace", "ResourceFlavor", "ClusterQueue", "LocalQueue"
    ):
        if (
            body["metadata"]["name"]
            not in ("monitoring", "spot", "on-demand", "flex", "queued", "any")
            or body["metadata"].get("namespace") in spaces
        ):
            bodies.append(body)
    for body in bodies:
        if body["kind"] == "ClusterQueue":  # a cohort of their own in the shared cluster
            body["spec"]["cohortName"] = world.name
        api.apply(api.path_of(body), body)
    try:
        yield spaces
    finally:
        for body in reversed(bodies):
            if body["kind"] in ("ClusterQueue", "Namespace"):
                api.delete(api.path_of(body))


def test_a_team_borrows_what_another_leaves_and_gives_it_back(world: World, api: Api) -> None:
    with sharing(world, api) as spaces:
        for number in range(4):
            submit(api, spaces[0], f"job-{number}")
        until("it borrows all that is idle", lambda: running(api, spaces[0]) == 4)
        for number in range(2):
            submit(api, spaces[1], f"job-{number}")
        until(
            "its owner has it back",
            lambda: (running(api, spaces[0]), running(api, spaces[1])) == (2, 2),
        )


def count_running(api: Api, namespace: str) -> tuple[int, int]:
    """Return how many jobs of high priority run, and how many others."""
    names = list_running(api, namespace)
    high = sum(name.startswith("high") for name in names)
    return high, len(names) - high


def test_high_priority_preempts_within_the_team_only(world: World, api: Api) -> None:
    for body in render_teams((), "WorkloadPriorityClass"):
        api.apply(api.path_of(body), body)
    with sharing(world, api) as spaces:
        for namespace in spaces:
            for number in range(2):
                submit(api, namespace, f"low-{number}", "low")
        until("both teams use what they have", lambda: [running(api, s) for s in spaces] == [2, 2])
        for number in range(3):
            submit(api, spaces[0], f"high-{number}", "high")
        # The third would have to borrow: its priority counts for nothing in the other team.
        until("the low jobs of the team made room", lambda: count_running(api, spaces[0]) == (2, 0))
        assert count_running(api, spaces[1]) == (0, 2)


def test_a_team_borrows_up_to_its_limit(world: World, api: Api) -> None:
    with sharing(world, api, limits=(Quota(source="nvidia-l4", gpus=3),)) as spaces:
        for number in range(4):
            submit(api, spaces[0], f"job-{number}")
        path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{spaces[0]}/workloads"

        def waiting() -> list[str]:
            conditions = []
            for item in api.items(path):
                for c in item.get("status", {}).get("conditions", ()):
                    conditions.append(c)
            messages: list[str] = []
            for c in conditions:
                if c["type"] == "QuotaReserved" and c["status"] == "False":
                    messages.append(c["message"])
            return messages

        until("three run", lambda: running(api, spaces[0]) == 3)
        (message,) = until("one waits", waiting)
        assert f"insufficient unused quota for {GPU_RESOURCE}" in message
        assert running(api, spaces[0]) == 3
