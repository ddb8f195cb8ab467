"""The platform half on the real control plane: applied, applied again, and pruned."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from holdfast.clients.api import Api, Object
from holdfast.manifests.render_context import RenderContext
from holdfast.support.errors import InputError
from holdfast.vocabulary.kubernetes import KUEUE_API, LABEL_HALF, LABEL_NAME
from tests import platforms
from tests.cluster.sim import flex
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.manifests.rendering import platform as rendered
from workloads.operators import platform

pytestmark = pytest.mark.usefixtures("kueue")
NAMESPACES = ("training", "batch", "serving", "monitoring")


@pytest.fixture
def gke_kinds(api: Api) -> None:
    flex.define(api, "ComputeClass", "computeclasses", "cloud.google.com", "Cluster")
    flex.define(api, "PodMonitoring", "podmonitorings", "monitoring.googleapis.com")


@pytest.fixture
def platform_cleanup(api: Api) -> Iterator[None]:
    """Deletes the workloads of the platform after a test."""
    yield
    for plural in (
        "apps/v1/deployments",
        "apps/v1/daemonsets",
        "batch/v1/cronjobs",
        "batch/v1/jobs",
    ):
        group, kind = f"/apis/{plural}".rsplit("/", 1)
        for item in api.items(f"{group}/{kind}", labelSelector=f"{LABEL_HALF}=platform"):
            space, name = (item["metadata"][key] for key in ("namespace", "name"))
            api.delete(f"{group}/namespaces/{space}/{kind}/{name}", propagationPolicy="Background")


def pods(api: Api) -> list[Object]:
    pods: list[Object] = []
    for space in NAMESPACES:
        pods += api.items(f"/api/v1/namespaces/{space}/pods")
    return pods


@pytest.mark.usefixtures("gke_kinds", "platform_cleanup")
def test_apply_starts_nothing_that_costs_money_and_is_idempotent(world: World, api: Api) -> None:
    with pytest.raises(InputError, match="make images operators-pin ENV=example"):
        list(platform.apply(api, RenderContext(platforms.load("example"))))
    context = RenderContext(platforms.with_images("example"))
    world.add_nodes(platforms.load("example").pool("system"), 1)
    first = list(platform.apply(api, context))
    assert {"Deployment/exporter", "Deployment/mover", "ClusterQueue/spot"} <= {
        change.name for change in first
    }
    until("all of it runs", lambda: _list_running(api) == {"exporter", "migrate", "mover"})
    for pod in pods(api):
        assert "nvidia.com/gpu" not in json.dumps(pod["spec"])
    verbs = {change.verb for change in platform.apply(api, context)}
    assert verbs == {"unchanged"}
    for body in rendered(context):
        if "template" in body.get("spec", {}):
            assert "nvidia.com/gpu" not in json.dumps(body["spec"]["template"])
    _prunes_only_its_own(api, context)


@pytest.mark.usefixtures("gke_kinds", "platform_cleanup")
def test_a_dry_run_names_what_goes_and_changes_nothing(api: Api) -> None:
    context = RenderContext(platforms.with_images("example"))
    list(platform.apply(api, context))
    smaller = RenderContext(replace(context.platform, auto_provisioning={}))
    changes = set()
    for change in platform.preview(api, smaller):
        changes.add((change.verb, change.name))
    flavor = "flex-nvidia-l4"
    assert {
        ("removed", f"ResourceFlavor/{flavor}"),
        ("removed", "ClusterQueue/flex"),
        ("removed", "ComputeClass/nvidia-l4"),
        ("changed", "ConfigMap/holdfast-platform"),
    } <= changes
    assert api.find(f"/apis/{KUEUE_API}/resourceflavors/{flavor}")
    unchanged = {change.verb for change in platform.preview(api, context)}
    assert unchanged == {"unchanged"}


@pytest.mark.usefixtures("gke_kinds", "platform_cleanup")
def test_gpu_fault_exporter_runs_on_gpu_nodes_only(world: World, api: Api) -> None:
    """Pod Security admits it, and it tolerates the taints of Spot; no process starts here."""
    example = platforms.with_images("example")
    list(platform.apply(api, RenderContext(example)))
    wanted = set(
        world.add_nodes(example.pool("serving"), 1) + world.add_nodes(example.pool("spot-a100"), 1)
    )
    world.add_nodes(example.pool("system"), 1)
    path = "/api/v1/namespaces/gpu-metrics/pods"

    def list_running_nodes() -> set[str]:
        pods = []
        for pod in api.items(path):
            if pod["status"].get("phase") == "Running":
                pods.append(pod)
        return {pod["spec"]["nodeName"] for pod in pods} & set(world.nodes)

    until("each GPU node has its pod", lambda: list_running_nodes() >= wanted)
    assert list_running_nodes() == wanted


def _list_running(api: Api) -> set[str]:
    """Return the names of all that has pods, once each of these runs; before that nothing."""
    names: set[str] = set()
    for pod in pods(api):
        if pod["status"].get("phase") != "Running":
            return set()
        names.add(pod["metadata"]["labels"][LABEL_NAME])
    return names


def _prunes_only_its_own(api: Api, context: RenderContext) -> None:
    """Expects that a class that is no longer rendered is removed, and that a class with another
    label and a namespace stay.
    """
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    for name, labels in (
        ("old-class", {LABEL_HALF: "platform"}),
        ("their-class", {"app.kubernetes.io/part-of": "holdfast"}),
    ):
        head = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "value": 1,
        }
        metadata = {"name": name, "labels": labels}
        api.apply(f"{classes}/{name}", head | {"metadata": metadata})
    api.apply(
        "/api/v1/namespaces/old-space",
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": "old-space",
                "labels": {LABEL_HALF: "platform"},
            },
        },
    )
    changed = []
    for change in platform.apply(api, context):
        if change.verb != "unchanged":
            changed.append(change)
    assert [(change.verb, change.name) for change in changed] == [
        ("removed", "PriorityClass/old-class")
    ]
    assert api.find(f"{classes}/their-class")
    assert api.find("/api/v1/namespaces/old-space")
    api.delete(f"{classes}/their-class")
    api.delete("/api/v1/namespaces/old-space")
