"""Batch inference: a Job that ends with its queue, and steady workers that follow the backlog."""

from collections.abc import Iterator

from kubernetes import client

from infra.contract.capacity import ANNOTATION_RULE, PlacementRule
from infra.contract.names import NAMESPACE_BATCH
from infra.contract.telemetry import METRIC_PREFIX
from workloads.manifests.builders.pods import Work, template
from workloads.manifests.builders.site import Body, Site, meta, plain
from workloads.manifests.builders.training import DAY_S, Task, gpu_size, job

# Made outside of git: `kubectl -n batch create secret generic results --from-file=pg_service.conf`. A file, since an
# environment variable is shown by every `describe`; libpq reads host, user and password from it.
SECRET, SECRET_DIR, SERVICE_FILE = "results", "/etc/holdfast/results", "pg_service.conf"
DATABASE = {
    "HOLDFAST_DATABASE_URL": "postgresql:///?service=results",
    "PGSERVICEFILE": f"{SECRET_DIR}/{SERVICE_FILE}",
}
NO_PROBE = {
    "checkov.io/skip1": "CKV_K8S_8=a worker answers no requests; a hung one loses its leases to others",
    "checkov.io/skip2": "CKV_K8S_9=a worker answers no requests",
    "kube-score/ignore": "deployment-has-host-podantiaffinity,deployment-has-poddisruptionbudget",
}
STEADY, DRAIN = "batch-steady", "batch-drain"
MAX_WORKERS = 8


def objects(site: Site) -> Iterator[Body]:
    yield drain(site)
    yield steady(site)
    yield follower(site)


def _work(site: Site, name: str, *, restart: str | None) -> Work:
    return Work(
        name=name,
        role="batch",
        job=name,
        command=[
            "python",
            "-m",
            "workloads",
            "batch",
            "run",
            name,
            "--checkpoints",
            site.checkpoints,
            "--run",
            "train-gang",
        ],
        size=gpu_size(site.batch),
        pool=site.batch,
        priority="spot-workload-low",
        grace_s=site.batch.window.pod_s,
        restart=restart,
        env=DATABASE,
        volumes=[(_secret(), SECRET_DIR)],
        annotations={ANNOTATION_RULE: PlacementRule.BATCH.value},
    )


def _secret() -> client.V1Volume:
    source = client.V1SecretVolumeSource(secret_name=SECRET, default_mode=0o440)
    return client.V1Volume(name=SECRET, secret=source)


def drain(site: Site) -> Body:
    """Workers end when the queue is empty: nodes go to zero without any autoscaler of pods."""
    pods = min(MAX_WORKERS, site.batch.max_nodes)
    body = job(
        site, Task(name=DRAIN, pods=pods, deadline_s=7 * DAY_S, queue="spot", work=_work(site, DRAIN, restart="Never"))
    )
    body["metadata"]["namespace"] = NAMESPACE_BATCH
    return body


def steady(site: Site) -> Body:
    """For queues that never end. Replicas belong to the autoscaler and are not stated."""
    return plain(
        client.V1Deployment(
            api_version="apps/v1",
            kind="Deployment",
            metadata=meta(STEADY, NAMESPACE_BATCH, annotations=NO_PROBE),
            spec=client.V1DeploymentSpec(
                selector=client.V1LabelSelector(match_labels={"app.kubernetes.io/name": STEADY}),
                revision_history_limit=3,
                progress_deadline_seconds=4 * 3600,  # Spot may be sold out for hours
                template=template(site, _work(site, STEADY, restart=None)),
            ),
        )
    )


def follower(site: Site) -> Body:
    """The exporter computes how many workers meet the deadline; this asks for as many."""
    metric = f"{METRIC_PREFIX}/batch_replicas_wanted".replace("/", "|")
    source = client.V2ExternalMetricSource(
        metric=client.V2MetricIdentifier(
            name=metric, selector=client.V1LabelSelector(match_labels={"metric.labels.job": STEADY})
        ),
        target=client.V2MetricTarget(type="AverageValue", average_value="1"),
    )
    calm = client.V2HPAScalingRules(stabilization_window_seconds=600)
    scaler = client.V2HorizontalPodAutoscaler(
        api_version="autoscaling/v2",
        kind="HorizontalPodAutoscaler",
        metadata=meta(STEADY, NAMESPACE_BATCH, annotations={"kube-score/ignore": "horizontalpodautoscaler-replicas"}),
        spec=client.V2HorizontalPodAutoscalerSpec(
            scale_target_ref=client.V2CrossVersionObjectReference(
                api_version="apps/v1", kind="Deployment", name=STEADY
            ),
            min_replicas=1,
            max_replicas=min(MAX_WORKERS, site.batch.max_nodes),
            metrics=[client.V2MetricSpec(type="External", external=source)],
            behavior=client.V2HorizontalPodAutoscalerBehavior(scale_down=calm),
        ),
    )
    return plain(scaler)
