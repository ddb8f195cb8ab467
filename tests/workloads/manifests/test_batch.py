"""Tests of rendered batch pods: database proxy, dataset, and the autoscaler's metric."""

from dataclasses import replace
from urllib.parse import unquote, urlsplit

import pytest

from holdfast.exporter.backlog import _samples as make_samples
from holdfast.inference.results.connect import database_uri
from holdfast.manifests.batch import follower
from holdfast.manifests.render_context import RenderContext
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.environment import ENV_DATABASE
from holdfast.vocabulary.telemetry import METRIC_PREFIX
from infra import environments
from infra.specs import resources
from infra.specs.queue import RETENTION_DAYS
from infra.specs.storage import DAY_S
from tests.monitoring.alerting.firings import promql_name
from tests.platforms import load, names
from tests.workloads.manifests.rendered import Body, find_object, option, variables, workloads
from workloads.manifests.queueing import objects

BATCH = "batch"
SAMPLES = make_samples([("batch-steady", 4, 60.0, 1)])
REPLICAS = next(sample for sample in SAMPLES if "replicas" in sample.metric)
WITH_PROXY = [env for env in names() if load(env).database]
WITHOUT_PROXY = [env for env in names() if not load(env).database]


def list_templates(env: str) -> list[Body]:
    templates: list[Body] = []
    for body, template in workloads(env):
        if body["metadata"]["namespace"] == BATCH:
            templates.append(template)
    assert len(templates) >= 3
    return templates


@pytest.mark.parametrize("env", names())
def test_lanes_keep_items_until_a_batch_is_stopped(env: str) -> None:
    for body, _ in workloads(env):
        stopped_after_s = body["spec"].get("activeDeadlineSeconds", 0)
        assert stopped_after_s < RETENTION_DAYS * DAY_S


@pytest.mark.parametrize("env", WITH_PROXY)
def test_batch_pods_have_the_proxy_as_native_sidecar(env: str) -> None:
    for template in list_templates(env):
        (proxy,) = template["spec"]["initContainers"]
        request = proxy["startupProbe"]["httpGet"]
        assert proxy["restartPolicy"] == "Always"
        assert request["path"] == "/startup"
        assert proxy["args"][-1] == load(env).database.connection
        assert {"--private-ip", "--auto-iam-authn", "--exit-zero-on-sigterm"} <= set(proxy["args"])
        assert f"--http-port={request['port']}" in proxy["args"]


@pytest.mark.parametrize("env", WITH_PROXY)
def test_workers_log_in_as_their_service_account_without_a_secret(
    env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for template in list_templates(env):
        (proxy,) = template["spec"]["initContainers"]
        monkeypatch.setenv(ENV_DATABASE, variables(template)[ENV_DATABASE]["value"])
        uri = urlsplit(database_uri(""))  # the URI that the worker reads
        assert uri.hostname == "127.0.0.1"
        assert f"--port={uri.port}" in proxy["args"]
        account = template["spec"]["serviceAccountName"]
        assert unquote(uri.username or "") == load(env).database.users[account]
        assert uri.password is None
        for volume in template["spec"]["volumes"]:
            if "secret" in volume:
                name = volume["secret"]["secretName"]
                assert name.startswith("run-key-"), "a key of checkpoints, not of the database"


@pytest.mark.parametrize("env", WITHOUT_PROXY)
def test_without_cloud_sql_the_connection_comes_from_a_mounted_file(env: str) -> None:
    for template in list_templates(env):
        mounts = template["spec"]["containers"][0]["volumeMounts"]
        (mount,) = [mount for mount in mounts if mount["name"] == "results"]
        file = variables(template)["PGSERVICEFILE"]["value"]
        assert file.startswith(mount["mountPath"] + "/")
        assert mount["readOnly"]
        assert "initContainers" not in template["spec"]


def test_dataset_readers_mount_it_read_only_with_the_sidecar(env: str) -> None:
    readers = 0
    for body, template in workloads(env):
        (main,) = template["spec"]["containers"]
        folder = find_dataset(main.get("command", []))
        annotations = template["metadata"].get("annotations", {})
        claims: list[Body] = []
        for volume in template["spec"]["volumes"]:
            if "persistentVolumeClaim" in volume:
                claims.append(volume["persistentVolumeClaim"])
        has_sidecar = annotations.get("gke-gcsfuse/volumes") == "true"
        assert has_sidecar is bool(claims) is bool(folder), body["metadata"]["name"]
        if folder:
            readers += 1
            mounts = {mount["mountPath"]: mount for mount in main["volumeMounts"]}
            name = mounts[folder]["name"]
            assert mounts[folder]["readOnly"] is True
            assert claims == [{"claimName": name, "readOnly": True}]
            check_volume(env, name, body["metadata"]["namespace"])
    assert readers >= 5


def find_dataset(command: list[str]) -> str:
    for name in ("--data", "--source"):
        if name in command:
            return option(command, name)
    return ""


def check_volume(env: str, claim_name: str, namespace: str) -> None:
    claim = find_object(env, "PersistentVolumeClaim", claim_name, namespace)
    volume = find_object(env, "PersistentVolume", claim["spec"]["volumeName"])
    assert volume["spec"]["csi"]["driver"] == "gcsfuse.csi.storage.gke.io"
    assert volume["spec"]["csi"]["volumeHandle"] == load(env).buckets["data"]
    assert volume["spec"]["claimRef"]["namespace"] == namespace


def test_steady_workers_follow_the_exporters_metric(env: str) -> None:
    """Needs no installation: GKE's own adapter reads what the exporter sends."""
    series = promql_name(f"{METRIC_PREFIX}/{REPLICAS.metric}")
    job = dict(REPLICAS.labels)["job"]
    (metric,) = find_object(env, "AutoscalingMetric", "batch-steady")["spec"]["metrics"]
    selector = f'cluster_name="{load(env).cluster}",job="{job}"'
    assert metric["promql"]["query"] == f"max({series}{{{selector}}})"
    scaler = find_object(env, "HorizontalPodAutoscaler", "batch-steady")["spec"]
    (source,) = scaler["metrics"]
    name = source["external"]["metric"]["name"]
    assert name == f"autoscaling.gke.io|batch-steady|{metric['promql']['name']}"
    assert scaler["minReplicas"] == 1
    profiles: list[object] = []
    for resource in resources(environments.load(env)):
        if "pod_autoscaling" in resource.arguments:
            profiles.append(resource.arguments["pod_autoscaling"])
    assert profiles == [{"hpa_profile": "PERFORMANCE"}]


def make_context(gke: str) -> RenderContext:
    platform = load("example")
    return RenderContext(replace(platform, versions=replace(platform.versions, gke=gke)))


@pytest.mark.parametrize(
    ("gke", "min_replicas"),
    [
        ("", 1),
        ("1.36", 1),
        ("1.36.9-gke.2", 1),
        ("1.37", 0),
        ("1.37.1-gke.3", 0),
    ],
)
def test_steady_workers_scale_to_zero_on_new_versions(gke: str, min_replicas: int) -> None:
    assert follower(make_context(gke))["spec"]["minReplicas"] == min_replicas


@pytest.mark.parametrize(
    ("gke", "recycles"),
    [
        ("", False),
        ("1.34.9", False),
        ("1.35", True),
        ("1.37", True),
    ],
)
def test_classes_recycle_flex_nodes_on_new_versions(gke: str, recycles: bool) -> None:
    classes = []
    for body in objects(make_context(gke)):
        if body["kind"] == "ComputeClass":
            classes.append(body)
    assert classes
    with_flex = []
    for body in classes:
        if not body["metadata"]["name"].startswith("any-"):
            with_flex.append(body)
    assert with_flex
    for compute_class in with_flex:
        flex_priorities: list[Body] = []
        for priority in compute_class["spec"]["priorities"]:
            if "flexStart" in priority:
                flex_priorities.append(priority["flexStart"])
        (flex,) = flex_priorities
        assert ("nodeRecycling" in flex) is recycles


def test_classes_name_no_capacity_that_google_does_not_sell() -> None:
    """One H100 of eight is sold on Spot and as flex-start: GKE would try on demand for ever."""
    context = make_context("1.35")
    pool = replace(
        next(pool for pool in context.platform.pools if pool.accelerator == "nvidia-tesla-a100"),
        machine_type="a3-highgpu-1g",
        accelerator="nvidia-h100-80gb",
        capacity=Capacity.SPOT,
    )
    platform = replace(context.platform, pools=(pool,), auto_provisioning={"nvidia-h100-80gb": 8})
    bodies = objects(RenderContext(platform))
    (compute_class,) = [body for body in bodies if body["kind"] == "ComputeClass"]
    for priority in compute_class["spec"]["priorities"]:
        assert priority.get("spot") or "flexStart" in priority, priority
