"""Builds Deployments on preemptible machines, with their autoscalers, probes and monitors."""

from typing import Any

from kubernetes import client

from holdfast.manifests.pods import PodSettings, Probes, template
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.vocabulary import serving
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.kubernetes import LABEL_NAME, MONITORING_API
from holdfast.vocabulary.pools import Pool, Role
from holdfast.vocabulary.roles import NAMESPACE_SERVING

LABEL_SERVES = "holdfast.dev/serves"


def deployment(
    context: RenderContext,
    namespace: str,
    work: PodSettings,
    replicas: int | None = None,
    *,
    unavailable: int = 1,
) -> Body:
    """Builds the Deployment of a workload; no `replicas` where an autoscaler sets them.

    A roll-out may take `unavailable` replicas away before others are ready: 0 for a single one.
    """
    spec = client.V1DeploymentSpec(
        replicas=replicas,
        selector=client.V1LabelSelector(match_labels={LABEL_NAME: work.name}),
        revision_history_limit=3,
        progress_deadline_seconds=4 * 3600,  # Spot may be sold out for hours
        strategy=client.V1DeploymentStrategy(
            type="RollingUpdate",
            # There may be no machine for one more replica; a lost machine also costs one replica.
            rolling_update=client.V1RollingUpdateDeployment(
                max_surge=1, max_unavailable=unavailable
            ),
        ),
        template=template(context, work),
    )
    return manifest("apps/v1", "Deployment", meta(work.name, namespace), spec=spec)


def autoscaler(
    name: str,
    namespace: str,
    min_replicas: int,
    max_replicas: int,
    metrics: list[Body],
    scale_down_s: int,
    **behavior: Any,
) -> Body:
    """Builds the autoscaler of a Deployment, which waits `scale_down_s` before replicas end."""
    spec = {
        "behavior": {
            "scaleDown": {"stabilizationWindowSeconds": scale_down_s},
            **behavior,
        },
        "maxReplicas": max_replicas,
        "metrics": metrics,
        "minReplicas": min_replicas,
        "scaleTargetRef": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": name,
        },
    }
    return manifest("autoscaling/v2", "HorizontalPodAutoscaler", meta(name, namespace), spec=spec)


def base_pool(context: RenderContext) -> Pool:
    return next(pool for pool in context.platform.pools if pool.role is Role.SERVING)


def overflow_pool(context: RenderContext) -> Pool:
    """Returns the Spot pool with the base's accelerator, else that of batch."""
    accelerator = base_pool(context).accelerator
    for pool in context.platform.pools:
        if pool.capacity is Capacity.SPOT and pool.accelerator == accelerator:
            return pool
    return context.batch


def probes(port: int) -> Probes:
    """Builds the probes of a server.

    The kubelet probes readiness, and so does the proxy, which alone continues after a Spot notice:
    httpGet, every second, one failure. Liveness only ends a hung process.
    """
    ready = client.V1Probe(
        http_get=client.V1HTTPGetAction(path=serving.READY_PATH, port=port),
        period_seconds=serving.PROBE_PERIOD_S,
        timeout_seconds=serving.PROBE_TIMEOUT_S,
        failure_threshold=serving.PROBE_FAILURES,
        success_threshold=1,
    )
    live = client.V1Probe(
        http_get=client.V1HTTPGetAction(path=serving.LIVE_PATH, port=port),
        period_seconds=10,
        timeout_seconds=5,
        failure_threshold=6,
    )
    return Probes(readiness=ready, liveness=live)


def scraping(
    name: str,
    labels: dict[str, str],
    port: int,
    path: str = "/metrics",
    *,
    namespace: str = NAMESPACE_SERVING,
) -> Body:
    """Builds a monitor for managed Prometheus, which feeds the autoscaler and the alerts.

    Each series names its tier.
    """
    spec = {
        "selector": {"matchLabels": labels},
        "endpoints": [
            {
                "port": port,
                "interval": "15s",
                "path": path,
            }
        ],
        "targetLabels": {"fromPod": [{"from": serving.LABEL_TIER, "to": serving.TIER_LABEL}]},
    }
    return manifest(MONITORING_API, "PodMonitoring", meta(name, namespace), spec=spec)


def port() -> client.V1ServicePort:
    return client.V1ServicePort(
        name="http",
        port=serving.PORT,
        target_port=serving.PORT,
        app_protocol="http",
    )
