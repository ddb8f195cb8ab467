"""What all Deployments of online inference share: machines, probes, roll-outs, scraping."""

from kubernetes import client

from holdfast.contract import serving
from infra.contract.capacity import Capacity
from infra.contract.kubernetes import LABEL_NAME, LABEL_PART_OF, PART_OF
from infra.contract.names import NAMESPACE_SERVING
from infra.contract.pools import Pool, Role
from workloads.manifests.builders.pods import Probes, Work, template
from workloads.manifests.builders.render_context import Body, RenderContext, marked, meta, plain

MONITORING_API = "monitoring.googleapis.com/v1"
LABEL_SERVES = "holdfast.dev/serves"


def base_pool(context: RenderContext) -> Pool:
    return next(pool for pool in context.env.pools() if pool.role is Role.SERVING)


def overflow_pool(context: RenderContext) -> Pool:
    """The Spot pool with the base's accelerator, else that of batch."""
    wanted = base_pool(context).accelerator
    fitting = (p for p in context.env.pools() if p.capacity is Capacity.SPOT and p.accelerator == wanted)
    return next(fitting, context.batch)


def probes(port: int) -> Probes:
    """Readiness is what ends traffic on Spot: httpGet, every second, one failure. Liveness only ends a hung process."""
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


def deployment(context: RenderContext, name: str, work: Work, replicas: int | None = None) -> Body:
    """Replicas of servers belong to their autoscaler and are not stated."""
    return plain(
        client.V1Deployment(
            api_version="apps/v1",
            kind="Deployment",
            metadata=meta(name, NAMESPACE_SERVING),
            spec=client.V1DeploymentSpec(
                replicas=replicas,
                selector=client.V1LabelSelector(match_labels={LABEL_NAME: name}),
                revision_history_limit=3,
                progress_deadline_seconds=4 * 3600,  # Spot may be sold out for hours
                strategy=client.V1DeploymentStrategy(
                    type="RollingUpdate",
                    # A machine more may not be there to be had; one replica less is what a lost machine costs too.
                    rolling_update=client.V1RollingUpdateDeployment(max_surge=1, max_unavailable=1),
                ),
                template=template(context, work),
            ),
        )
    )


def scraping(name: str, labels: dict[str, str], port: int, path: str = "/metrics") -> Body:
    """For managed Prometheus, which feeds the autoscaler and the alerts; each series names its tier."""
    return marked(
        {
            "apiVersion": MONITORING_API,
            "kind": "PodMonitoring",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE_SERVING,
                "labels": {LABEL_NAME: name, LABEL_PART_OF: PART_OF},
            },
            "spec": {
                "selector": {"matchLabels": labels},
                "endpoints": [{"port": port, "interval": "15s", "path": path}],
                "targetLabels": {"fromPod": [{"from": serving.LABEL_TIER, "to": serving.TIER_LABEL}]},
            },
        }
    )


def port() -> client.V1ServicePort:
    return client.V1ServicePort(name="http", port=serving.PORT, target_port=serving.PORT, app_protocol="http")
