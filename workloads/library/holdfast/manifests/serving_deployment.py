"""What all Deployments of online inference share: machines, probes, scraping."""

from kubernetes import client

from holdfast.contract import serving
from holdfast.contract.capacity import Capacity
from holdfast.contract.kubernetes import LABEL_NAME, LABEL_PART_OF, MONITORING_API, PART_OF
from holdfast.contract.pools import Pool, Role
from holdfast.contract.roles import NAMESPACE_SERVING
from holdfast.manifests.pods import Probes
from holdfast.manifests.render_context import Body, RenderContext, marked

LABEL_SERVES = "holdfast.dev/serves"


def base_pool(context: RenderContext) -> Pool:
    return next(pool for pool in context.platform.pools if pool.role is Role.SERVING)


def overflow_pool(context: RenderContext) -> Pool:
    """The Spot pool with the base's accelerator, else that of batch."""
    wanted = base_pool(context).accelerator
    fitting = (p for p in context.platform.pools if p.capacity is Capacity.SPOT and p.accelerator == wanted)
    return next(fitting, context.batch)


def probes(port: int) -> Probes:
    """Readiness is asked by the kubelet, and by the proxy, which alone asks on after a Spot notice: httpGet, every second,
    one failure. Liveness only ends a hung process."""
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
