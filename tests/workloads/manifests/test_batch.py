"""Batch pods: the database through its proxy, the dataset through FUSE, checkpoints through the
SDK.
"""

from dataclasses import replace
from urllib.parse import unquote, urlsplit

import pytest

from holdfast.exporter.backlog import _samples as samples_of
from holdfast.inference.results.connect import database_uri
from holdfast.manifests.batch import follower
from holdfast.manifests.render_context import RenderContext
from holdfast.vocabulary.environment import ENV_DATABASE
from holdfast.vocabulary.telemetry import METRIC_PREFIX
from infra import environments
from infra.specs import resources
from tests.monitoring.alerting.firings import promql_name
from tests.platforms import load, names
from tests.workloads.manifests.rendered import Body, named, option, variables, workloads
from workloads.manifests.queueing import objects

BATCH = "batch"
WANTED = next(s for s in samples_of([("batch-steady", 4, 60.0, 1)]) if "replicas" in s.metric)
WITH_PROXY = [env for env in names() if load(env).database]
WITHOUT = [env for env in names() if not load(env).database]


def pods(env: str) -> list[tuple[Body, Body]]:
    found = []
    for body, template in workloads(env):
        if body["metadata"]["namespace"] == BATCH:
            found.append((body, template))
    assert len(found) >= 3
    return found


@pytest.mark.parametrize("env", WITH_PROXY)
def test_every_batch_pod_has_the_proxy_beside_it_from_its_start_to_its_end(env: str) -> None:
    for _, template in pods(env):
        (proxy,) = template["spec"]["initContainers"]
        assert (
            proxy["restartPolicy"] == "Always"
            and proxy["startupProbe"]["httpGet"]["path"] == "/startup"
        )
        assert proxy["args"][-1] == load(env).database.connection
        assert {"--private-ip", "--auto-iam-authn", "--exit-zero-on-sigterm"} <= set(proxy["args"])
        assert f"--http-port={proxy['startupProbe']['httpGet']['port']}" in proxy["args"]


@pytest.mark.parametrize("env", WITH_PROXY)
def test_workers_log_in_as_their_service_account_without_a_secret(
    env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _, template in pods(env):
        (proxy,) = template["spec"]["initContainers"]
        monkeypatch.setenv(ENV_DATABASE, variables(template)[ENV_DATABASE]["value"])
        uri = urlsplit(database_uri(""))  # as the worker reads it
        assert uri.hostname == "127.0.0.1" and f"--port={uri.port}" in proxy["args"]
        account = template["spec"]["serviceAccountName"]
        assert (
            unquote(uri.username or "") == load(env).database.users[account]
            and uri.password is None
        )
        secrets = []
        for volume in template["spec"]["volumes"]:
            if "secret" in volume:
                secrets.append(volume["secret"]["secretName"])
        assert all(name.startswith("run-key-") for name in secrets), (
            "of the run's checkpoints, not of the database"
        )


@pytest.mark.parametrize("env", WITHOUT)
def test_without_cloud_sql_the_connection_comes_from_a_mounted_file(env: str) -> None:
    for _, template in pods(env):
        (mount,) = (
            m for m in template["spec"]["containers"][0]["volumeMounts"] if m["name"] == "results"
        )
        assert (
            variables(template)["PGSERVICEFILE"]["value"].startswith(mount["mountPath"] + "/")
            and mount["readOnly"]
        )
        assert "initContainers" not in template["spec"]


def test_whoever_reads_the_dataset_mounts_it_read_only_with_its_sidecar_announced(env: str) -> None:
    readers = 0
    for body, template in workloads(env):
        (main,) = template["spec"]["containers"]
        reads = next((o for o in ("--data", "--source") if o in main.get("command", ())), None)
        annotated = template["metadata"].get("annotations", {}).get("gke-gcsfuse/volumes") == "true"
        claims = []
        for v in template["spec"]["volumes"]:
            if "persistentVolumeClaim" in v:
                claims.append(v["persistentVolumeClaim"])
        assert annotated is bool(claims) is (reads is not None), body["metadata"]["name"]
        if reads:
            readers += 1
            (mount,) = (
                m for m in main["volumeMounts"] if m["mountPath"] == option(main["command"], reads)
            )
            assert mount["readOnly"] is True and claims == [
                {"claimName": mount["name"], "readOnly": True}
            ]
            claim = named(
                env, "PersistentVolumeClaim", mount["name"], body["metadata"]["namespace"]
            )
            volume = named(env, "PersistentVolume", claim["spec"]["volumeName"])
            assert volume["spec"]["csi"]["driver"] == "gcsfuse.csi.storage.gke.io"
            assert volume["spec"]["csi"]["volumeHandle"] == load(env).buckets["data"]
            assert volume["spec"]["claimRef"]["namespace"] == body["metadata"]["namespace"]
    assert readers >= 5


def test_steady_workers_follow_a_metric_that_their_cluster_and_the_exporter_give(env: str) -> None:
    """Nothing is installed for it: GKE's own adapter reads what the exporter sends."""
    sent = promql_name(f"{METRIC_PREFIX}/{WANTED.metric}")
    (given,) = named(env, "AutoscalingMetric", "batch-steady")["spec"]["metrics"]
    query = given["promql"]["query"]
    assert (
        query
        == f'max({sent}{{cluster_name="{load(env).cluster}",job="{dict(WANTED.labels)["job"]}"}})'
    )
    (asked,) = named(env, "HorizontalPodAutoscaler", "batch-steady")["spec"]["metrics"]
    name = asked["external"]["metric"]["name"]
    assert name == f"autoscaling.gke.io|batch-steady|{given['promql']['name']}"
    assert named(env, "HorizontalPodAutoscaler", "batch-steady")["spec"]["minReplicas"] == 1
    (cluster,) = (
        r.arguments for r in resources(environments.load(env)) if "pod_autoscaling" in r.arguments
    )
    assert cluster["pod_autoscaling"] == {"hpa_profile": "PERFORMANCE"}


def at_version(gke: str) -> RenderContext:
    platform = load("example")
    return RenderContext(replace(platform, versions=replace(platform.versions, gke=gke)))


@pytest.mark.parametrize(
    ("gke", "least"),
    [
        ("", 1),
        ("1.36", 1),
        ("1.36.9-gke.2", 1),
        ("1.37", 0),
        ("1.37.1-gke.3", 0),
    ],
)
def test_steady_workers_end_at_zero_where_every_accepted_version_can(gke: str, least: int) -> None:
    assert follower(at_version(gke))["spec"]["minReplicas"] == least


@pytest.mark.parametrize(
    ("gke", "recycles"),
    [
        ("", False),
        ("1.34.9", False),
        ("1.35", True),
        ("1.37", True),
    ],
)
def test_classes_recycle_flex_nodes_where_the_version_can(gke: str, recycles: bool) -> None:
    classes = []
    for body in objects(at_version(gke)):
        if body["kind"] == "ComputeClass":
            classes.append(body["spec"]["priorities"])
    assert classes
    for rungs in classes:
        (flex,) = (rung["flexStart"] for rung in rungs if "flexStart" in rung)
        assert ("nodeRecycling" in flex) is recycles
