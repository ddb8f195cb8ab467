"""`workloads doctor ENV`: each lack is named with its fix, on the real API server with the real
Kueue.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from holdfast.clients.api import Api
from holdfast.manifests.render_context import RenderContext
from holdfast.support.checks import Status, examine
from holdfast.support.errors import Unjudged
from tests import platforms
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.workloads.manifests import rendered
from workloads.manifests.rendering import platform
from workloads.operators import doctor_probes, install, overlay
from workloads.operators.catalogue import JOBSET, OPERATORS

EXAMPLE = platforms.with_images("example")
FOREIGN = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/kueue-of-somebody-else"
)

pytestmark = pytest.mark.usefixtures("kueue")


class Google:
    """Plays gcloud: it finds everything except the images that `images` marks as absent."""

    def __init__(self) -> None:
        self.images: dict[str, bool] = {}

    def __call__(self, *words: str, project: str) -> Any:
        assert project == EXAMPLE.project, "it only reads"
        assert "describe" in words, "it only reads"
        role = words[-1].rpartition("/")[2].partition("@")[0]
        if not self.images.get(role, True):
            raise Unjudged(f"ERROR: NOT_FOUND: {role}")
        return {}


@pytest.fixture
def google() -> Google:
    return Google()


@pytest.fixture
def system(api: Api, world: World) -> Iterator[None]:
    """Deployments of the operators on simulated nodes; the processes that answer for them run on
    this host.
    """
    pool = RenderContext(EXAMPLE).system
    world.add_nodes(pool, 2)
    deployments = []
    for operator in OPERATORS:
        for b in overlay.objects(operator, RenderContext(EXAMPLE)):
            if b["kind"] == "Deployment":
                deployments.append(b)
    for body in deployments:
        body = copy.deepcopy(body)
        del body["spec"]["template"]["spec"]["priorityClassName"]
        install.put(api, body, "test")
    yield
    for body in deployments:
        api.delete(api.path_of(body), propagationPolicy="Background")


def run_checks(
    api: Api, google: Google, platform: Any = EXAMPLE
) -> dict[str, tuple[Status, str, str]]:
    checks = examine(platform, doctor_probes.probes(api, google))
    return {check.name: (check.verdict, check.found, check.fix) for check in checks}


def test_an_empty_project_is_told_what_to_run_and_nothing_is_changed(
    api: Api, google: Google
) -> None:
    verdicts = run_checks(api, google, platforms.load("example"))
    assert verdicts["operators"][0] is Status.BROKEN
    assert "make operators ENV=example" in verdicts["operators"][2]
    assert "no digest" in verdicts["images"][1]
    assert "make images" in verdicts["images"][2]
    assert verdicts["database migrated"][0] is Status.BROKEN
    assert "make apply" in verdicts["database migrated"][2]
    without = replace(EXAMPLE, database=None)
    assert run_checks(api, google, without)["database migrated"][1] == "a database of your own"


@pytest.mark.usefixtures("system")
def test_each_gap_in_a_deployed_cluster_is_named(api: Api, world: World, google: Google) -> None:
    for body in platform(RenderContext(EXAMPLE)):
        if body["kind"] in ("Namespace", "ResourceFlavor", "ClusterQueue"):
            api.apply(api.path_of(body), body)
    until(
        "the operators are rolled out",
        lambda: all(install.find_rollout_fault(api, operator) is None for operator in OPERATORS),
    )
    until(
        "Kueue has judged the queues",
        lambda: "not judged" not in run_checks(api, google)["queues"][1],
    )
    verdicts = run_checks(api, google)
    for name in ("operators", "webhooks", "images"):
        assert verdicts[name][0] is Status.OK, (name, verdicts[name])
    assert "queued: " in verdicts["queues"][1], "its check is not there; the other queues admit"
    assert "spot" not in verdicts["queues"][1]

    google.images["kueue"] = False
    api.merge(_deployment(), {"metadata": {"labels": {"app.kubernetes.io/version": "v0.0.1"}}})
    webhook = {
        "name": "mpod.kb.io",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    webhook |= {"failurePolicy": "Ignore"}
    webhook |= {
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "timeoutSeconds": 1,
    }
    webhook |= {
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["DELETE"],
                "resources": ["pods"],
            }
        ]
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    api.apply(
        FOREIGN,
        kind
        | {
            "metadata": {"name": "kueue-of-somebody-else"},
            "webhooks": [webhook],
        },
    )
    try:
        verdicts = run_checks(api, google)
    finally:
        api.delete(FOREIGN)
    assert "jobset: v0.0.1" in verdicts["operators"][1]
    assert "mpod.kb.io intercepts pods" in verdicts["webhooks"][1]
    assert "kueue is not in the registry" in verdicts["images"][1]


def _deployment() -> str:
    return f"/apis/apps/v1/namespaces/{JOBSET.namespace}/deployments/{JOBSET.deployment}"


def test_a_scaler_without_its_metric_is_named(api: Api, google: Google) -> None:
    """Nothing serves the metrics of GKE's adapter here, as on a cluster that is too old for it."""
    for body in platform(RenderContext(EXAMPLE)):
        if body["kind"] == "Namespace":
            api.apply(api.path_of(body), body)
    assert run_checks(api, google)["scalers"][:2] == (Status.OK, "0 get their metrics")
    bodies = []
    for kind in ("Deployment", "HorizontalPodAutoscaler"):
        bodies.append(rendered.find_object("example", kind, "server-base"))
    try:
        for body in bodies:
            api.apply(api.path_of(body), body)
        until("it is judged", lambda: run_checks(api, google)["scalers"][0] is Status.BROKEN)
        _, text, fix = run_checks(api, google)["scalers"]
        assert "serving/server-base: " in text
        assert "requests" in text
        assert "autoscalingmetrics" in fix
    finally:
        for body in bodies:
            api.delete(api.path_of(body), propagationPolicy="Background")
