"""The rendered manifests against the real API server, JobSet, Kueue and scheduler."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from holdfast.clients.api import Api, ApiError, Object
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, condition
from holdfast.jobs.diagnose.job_snapshot import find as view_of
from holdfast.vocabulary.job_identity import read_attempt
from holdfast.vocabulary.kubernetes import PRIORITY_SPOT
from holdfast.vocabulary.pools import LABEL_NODEPOOL, Pool
from tests import platforms
from tests.cluster.sim.pods import environment
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import OWNER, World
from tests.workloads.manifests import rendered
from workloads.manifests import gpu_metrics

# Served by GKE only; nothing else may be unknown to the cluster.
GKE_ONLY = {
    *("autoscaling.gke.io/v1beta1", "autoscaling.x-k8s.io/v1", "cloud.google.com/v1"),
    *("monitoring.googleapis.com/v1", "networking.gke.io/v1"),
}

# What a cluster has before any job is submitted.
PLATFORM_KINDS = {
    "Namespace",
    "ServiceAccount",
    "PriorityClass",
    "ResourceQuota",
    "LimitRange",
    "NetworkPolicy",
    "ResourceFlavor",
    "ClusterQueue",
    "LocalQueue",
    "WorkloadPriorityClass",
    "Cohort",
    "Topology",
    "AdmissionCheck",
    "ProvisioningRequestConfig",
    "PersistentVolume",
    "PersistentVolumeClaim",
}

pytestmark = pytest.mark.usefixtures("kueue")


def load_portable_objects() -> list[Object]:
    """Loads the rendered objects except those of kinds that only GKE has."""
    docs: list[Object] = []
    for doc in rendered.load_objects("example"):
        if doc["apiVersion"] not in GKE_ONLY:
            docs.append(doc)
    return docs


@pytest.fixture
def namespaces(api: Api) -> None:
    """A dry run needs the namespace to be there."""
    spaces = {doc["metadata"].get("namespace") for doc in load_portable_objects()} - {None}
    for name in spaces:
        api.apply(
            f"/api/v1/namespaces/{name}",
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name},
            },
        )


@pytest.mark.usefixtures("namespaces")
def test_the_real_api_server_accepts_every_rendered_object_strictly(api: Api) -> None:
    refused: list[str] = []
    for doc in load_portable_objects():
        try:
            api.apply(api.path_of(doc), doc, dryRun="All")
        except ApiError as error:
            refused.append(f"{doc['kind']}/{doc['metadata']['name']}: {error}")
    assert not refused, "\n".join(refused)
    # Shows that the check can fail: a pod of each kind gets a misspelled field.
    for kind in ("Deployment", "Job", "JobSet"):
        original = next(doc for doc in load_portable_objects() if doc["kind"] == kind)
        doc = copy.deepcopy(original)
        _, spec = next(templates([doc]))
        spec["tolerations"] = [{"important": "true"}]
        with pytest.raises(ApiError, match="important"):
            api.apply(api.path_of(doc), doc, dryRun="All")


def test_every_pod_is_admitted_at_its_namespace_security_level(api: Api) -> None:
    """The API server only warns about a workload, but refuses a pod that breaks the level."""
    for doc in load_portable_objects():
        if doc["kind"] in PLATFORM_KINDS:
            api.apply(api.path_of(doc), doc)
    refused: list[str] = []
    count = 0
    for doc in load_portable_objects():
        for name, spec in templates([doc]):
            pods = f"/api/v1/namespaces/{doc['metadata']['namespace']}/pods"
            count += 1
            try:
                api.create(
                    pods,
                    {
                        "metadata": {"name": name[:63]},
                        "spec": spec,
                    },
                    dryRun="All",
                )
            except ApiError as error:
                refused.append(f"{name}: {error}")
            restricted = doc["metadata"]["namespace"] != gpu_metrics.NAMESPACE
            if restricted:  # else the level would not be enforced here
                with pytest.raises(ApiError, match="violates PodSecurity"):
                    api.create(
                        pods,
                        {
                            "metadata": {"name": "open"},
                            "spec": spec | {"hostNetwork": True},
                        },
                        dryRun="All",
                    )
    assert count >= 9, "\n".join(refused)
    assert not refused, "\n".join(refused)


def templates(docs: list[Object]) -> Iterator[tuple[str, Object]]:
    """Name and pod spec of everything that makes pods."""
    for doc in docs:
        spec: dict[str, Any] = doc.get("spec", {})
        name = f"{doc['kind']}-{doc['metadata']['name']}".lower()
        if doc["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        groups = [group["template"]["spec"] for group in spec.get("replicatedJobs", ())] or [spec]
        for n, group in enumerate(groups):
            if "template" in group and "spec" in group["template"]:
                yield f"{name}-{n}", group["template"]["spec"]


def make_pod_for_pool(spec: Object, pool: Pool, world: World) -> Object:
    """Makes a pod that is pinned to one pool: only taints and labels decide, not where its peers
    are.
    """
    pod_spec = {}
    for key in ("tolerations",):
        if spec.get(key):
            pod_spec[key] = spec[key]
    selector = spec.get("nodeSelector", {}) | {LABEL_NODEPOOL: pool.name, OWNER: world.name}
    limits = spec["containers"][0].get("resources", {}).get("limits", {})
    resources = {"limits": {key: value for key, value in limits.items() if "/" in key}}
    container = {
        "name": "main",
        "image": "none",
        "resources": resources,
    }
    return {
        "metadata": {},
        "spec": pod_spec
        | {
            "nodeSelector": selector,
            "containers": [container],
        },
    }


def is_scheduled(pod: Object) -> bool | None:
    """Returns the decision of the scheduler; None before its first attempt."""
    scheduling = condition(pod, "PodScheduled")
    return {"True": True, "False": False}.get(scheduling.get("status", ""))


def test_no_workload_lands_on_a_pool_that_it_does_not_tolerate(world: World) -> None:
    """Every workload pinned to every pool in turn: the real scheduler takes it exactly where it
    belongs.
    """
    # Room for every workload at once, so that only taints and selectors decide.
    pools = []
    for p in platforms.load("example").pools:
        pools.append(replace(p, gpus_per_node=p.gpus_per_node * 64))
    for pool in pools:
        world.add_nodes(pool, 1)
    expected: dict[str, bool] = {}
    for name, spec in templates(load_portable_objects()):
        for pool in pools:
            pod = f"p{len(expected)}-{name}-{pool.name}"[:63].rstrip("-")
            world.create_pod(pod, make_pod_for_pool(spec, pool, world))
            expected[pod] = belongs(spec, pool)
    assert True in expected.values()
    assert False in expected.values()

    def read_decisions() -> dict[str, bool] | None:
        answers = {}
        for pod in world.pods():
            answers[pod["metadata"]["name"]] = is_scheduled(pod)
        if None not in answers.values():
            return {k: v for k, v in answers.items() if v is not None}
        return None

    answers = until("the scheduler has tried every pod", read_decisions)
    wrong = {}
    for title, right in expected.items():
        if answers[title] is not right:
            wrong[title] = answers[title]
    assert not wrong, f"scheduled against what the pool says: {wrong}"


def belongs(spec: Object, pool: Pool) -> bool:
    """Decides by the taints and labels of the pool alone, not through our own helpers."""
    tolerations = spec.get("tolerations") or ()
    for taint in pool.taints:
        node_taint = {"key": taint.key, "effect": taint.effect.value}
        fits = []
        for t in tolerations:
            if (
                t.get("key") in (None, node_taint["key"])
                and t.get("effect") in (None, "", node_taint["effect"])
                and (t.get("operator") == "Exists" or t.get("value", "") == taint.value)
            ):
                fits.append(t)
        if not fits:
            return False
    selector: dict[str, str] = spec.get("nodeSelector", {})
    return selector.items() <= pool.node_labels().items()


def test_the_rendered_gang_is_admitted_and_survives_a_preemption(world: World, api: Api) -> None:
    """As it is rendered: through its queue, under its priority, quota and network rules, with
    nothing changed.
    """
    gang = next(doc for doc in load_portable_objects() if doc["kind"] == "JobSet")
    for doc in load_portable_objects():
        if doc["kind"] in PLATFORM_KINDS:
            api.apply(api.path_of(doc), doc)
    size = JobSnapshot(body=gang, pods=[]).size
    world.add_nodes(platforms.load("example").pool("spot-a100"), size)
    path = api.path_of(gang)
    api.apply(path, gang)
    try:
        before = wait_gang(api, gang, size, set())
        world.preempt([before[0]["spec"]["nodeName"]])
        world.add_nodes(platforms.load("example").pool("spot-a100"), 1)
        uids = {pod["metadata"]["uid"] for pod in before}
        after = wait_gang(api, gang, size, uids)
        assert [{attempt(pod) for pod in pods} for pods in (before, after)] == [{0}, {1}]
        status = api.get(path)["status"]
        assert status["restarts"] == 1
        assert status.get("restartsCountTowardsMax", 0) == 0
    finally:
        api.delete(path, propagationPolicy="Background")


def test_an_index_that_was_evicted_counts_its_starts(world: World, api: Api) -> None:
    """The Job is indexed, and its variables are as rendered."""
    sweep = next(
        doc for doc in load_portable_objects() if doc["metadata"]["name"].startswith("train-sweep")
    )
    pool = platforms.load("example").pool("spot-a100")
    spec = world.job_spec(pool, 1, backoffLimitPerIndex=3)
    spec["template"]["spec"]["containers"][0]["env"] = sweep["spec"]["template"]["spec"][
        "containers"
    ][0]["env"]
    world.add_nodes(pool, 2)
    world.create_job("counts", spec)
    (first,) = world.wait_running(1)
    world.preempt([first["spec"]["nodeName"]])
    fresh = until(
        "it runs again", lambda: [p for p in world.pods("Running") if uids([p]) != uids([first])]
    )
    assert [attempt(pod) for pod in (first, *fresh)] == [0, 1]


def uids(pods: list[Object]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def attempt(pod: Object) -> int:
    return read_attempt(environment(pod))


def wait_gang(api: Api, gang: Object, size: int, old: set[str]) -> list[Object]:
    """Waits until all pods of the gang run, none of them of `old`, and returns them."""

    def running() -> list[Object] | None:
        view = view_of(api, gang["metadata"]["name"], gang["metadata"]["namespace"])
        fresh = []
        for pod in view.phase("Running"):
            if pod["metadata"]["uid"] not in old:
                fresh.append(pod)
        return fresh if len(fresh) == size else None

    return until("the gang runs", running)


def unschedulable(world: World, name: str) -> str:
    """Waits until the scheduler has tried, and returns its message."""

    def message() -> str | None:
        conditions: list[Object] = world.pod(name)["status"].get("conditions", [])
        return next((c["message"] for c in conditions if c.get("reason") == "Unschedulable"), None)

    return until(f"{name} was tried", message)


def test_work_on_spot_yields_to_ordinary_work_and_to_system_pods(
    world: World, api: Api, spot: Pool
) -> None:
    body = rendered.find_object("example", "PriorityClass", PRIORITY_SPOT)
    api.apply(api.path_of(body), body)
    low = world.pod_template(spot, priorityClassName=PRIORITY_SPOT)
    # The API server takes pods of a class from its own cache, a moment after the class is there.
    until("admission knows the class", lambda: world.try_pod("probe", low) == 0)
    world.add_nodes(spot, 1)
    world.create_pod(
        "system", world.pod_template(spot, priorityClassName="system-cluster-critical")
    )
    world.wait_running(1)
    world.create_job("low", world.job_spec(spot, 1) | {"template": low})
    (pod,) = until(
        "its pod is there", lambda: [p for p in world.pods() if p["metadata"]["name"] != "system"]
    )
    name = pod["metadata"]["name"]
    assert "Insufficient nvidia.com/gpu" in unschedulable(world, name)
    assert world.pod("system")["status"]["phase"] == "Running"

    api.delete(f"{world.path('pods')}/system")
    until("there is room for it", lambda: world.pod(name)["status"]["phase"] == "Running")
    world.create_pod("ordinary", world.pod_template(spot))
    until(
        "ordinary work takes its place",
        lambda: world.pod("ordinary")["status"]["phase"] == "Running",
    )
    assert not world.job("low")["status"].get("failedIndexes"), "giving way is not charged"
