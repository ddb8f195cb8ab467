"""Online inference: an on-demand base and a Spot overflow behind one Service, with a proxy of ours as the first hop.

Clients reach `serving`, whose pods are the proxy's, on machines that nobody takes away. Behind it stand the pods of
`server`, base and overflow alike, found by the proxy's own watcher: on a Spot notice a pod stays
in its Service until it has ended, and only the proxy's own health check ends its traffic.
"""

# Why it is so: infra/decisions/0049.

from collections.abc import Iterator

from kubernetes import client

from holdfast.contract import serving
from holdfast.contract.capacity import ANNOTATION_RULE, PlacementRule
from holdfast.contract.kubernetes import LABEL_NAME, PRIORITY_SERVING, PRIORITY_SPOT
from holdfast.contract.pools import LABEL_ZONE, Pool
from holdfast.contract.roles import NAMESPACE_SERVING
from holdfast.manifests.deployments import deployment
from holdfast.manifests.pods import Work
from holdfast.manifests.policies import budget, ingress, scraped
from holdfast.manifests.render_context import Body, RenderContext, meta, plain
from holdfast.manifests.serving_deployment import (
    LABEL_SERVES,
    base_pool,
    overflow_pool,
    port,
    probes,
    scraping,
)
from holdfast.manifests.serving_proxy import ANNOTATION_CAPACITY, SERVER, SERVING, FirstHop, proxies
from holdfast.manifests.training import gpu_size
from holdfast.platform.document import Serving

OVERFLOW_LEAST = 2  # in two zones: one preemption does not take it all
RUN = "train-gang"
ANNOTATION_OVERFLOW = "holdfast.dev/overflow-of"  # read by the linter: the base that stays when Spot goes
CALM_S = 300
"""Before replicas go: a model takes minutes to come back."""


def samples(context: RenderContext) -> Iterator[Body]:
    wanted = context.platform.serving
    if wanted is None:
        return
    yield from _servers(context, wanted)
    yield from proxies(context, SERVING, {ANNOTATION_CAPACITY: wanted.promise})
    yield from policies(SERVING)


def _servers(context: RenderContext, wanted: Serving) -> Iterator[Body]:
    window_s = overflow_pool(context).window.pod_s
    tiers = (
        (serving.TIER_BASE, base_pool(context), wanted.base_replicas, wanted.base_most),
        (serving.TIER_OVERFLOW, overflow_pool(context), OVERFLOW_LEAST, wanted.overflow_most),
    )
    for tier, pool, least, most in tiers:
        name = f"{SERVER}-{tier}"
        body = _server(context, name, tier, pool, window_s)
        if tier == serving.TIER_OVERFLOW:
            body["metadata"].setdefault("annotations", {})[ANNOTATION_OVERFLOW] = f"{SERVER}-{serving.TIER_BASE}"
        yield body
        yield scaler(name, least, most, {serving.INFLIGHT: wanted.inflight_target})
        yield budget(name, NAMESPACE_SERVING, name, "Upgrades take one replica at a time; preemption asks nobody")
    yield from found_by_proxy(SERVER)


def found_by_proxy(name: str) -> Iterator[Body]:
    """Pods that bear LABEL_SERVES with this value, for their proxy and for Prometheus."""
    yield plain(
        client.V1Service(
            api_version="v1",
            kind="Service",
            # Without an address: the proxy chooses a pod for each request, not for each connection.
            metadata=meta(name, NAMESPACE_SERVING),
            spec=client.V1ServiceSpec(cluster_ip="None", selector={LABEL_SERVES: name}, ports=[port()]),
        )
    )
    yield scraping(name, {LABEL_SERVES: name}, serving.PORT)


def _server(context: RenderContext, name: str, tier: str, pool: Pool, window_s: int) -> Body:
    """Both tiers with the window of Spot: a client does not know which of them answers."""
    words = ["python", "-m", "holdfast", "serve", "run", "--checkpoints", context.checkpoints, "--run", RUN]
    work = Work(
        name=name,
        role=SERVER,
        job=name,
        reads_run=RUN,
        command=[*words, "--window", str(window_s), "--follow", "300"],
        size=gpu_size(pool),
        pool=pool,
        priority=PRIORITY_SPOT if pool.interruptible else PRIORITY_SERVING,
        grace_s=window_s,
        ports=[serving.PORT],
        probes=probes(serving.PORT),
        labels={LABEL_SERVES: SERVER, serving.LABEL_TIER: tier},
        annotations={ANNOTATION_RULE: PlacementRule.ONLINE.value},
        spread_over=LABEL_ZONE,
    )
    return deployment(context, NAMESPACE_SERVING, work)


def scaler(name: str, least: int, most: int, targets: dict[str, int]) -> Body:
    """By requests that run or wait, which grow with load; the time in the queue does not. `targets`: of each replica."""
    sources = [
        client.V2PodsMetricSource(
            metric=client.V2MetricIdentifier(name=f"prometheus.googleapis.com|{metric}|gauge"),
            target=client.V2MetricTarget(type="AverageValue", average_value=str(target)),
        )
        for metric, target in targets.items()
    ]
    behavior = client.V2HorizontalPodAutoscalerBehavior(
        scale_up=client.V2HPAScalingRules(stabilization_window_seconds=0),
        scale_down=client.V2HPAScalingRules(stabilization_window_seconds=CALM_S),
    )
    scaler = client.V2HorizontalPodAutoscaler(
        api_version="autoscaling/v2",
        kind="HorizontalPodAutoscaler",
        metadata=meta(name, NAMESPACE_SERVING),
        spec=client.V2HorizontalPodAutoscalerSpec(
            scale_target_ref=client.V2CrossVersionObjectReference(api_version="apps/v1", kind="Deployment", name=name),
            min_replicas=least,
            max_replicas=most,
            metrics=[client.V2MetricSpec(type="Pods", pods=source) for source in sources],
            behavior=behavior,
        ),
    )
    return plain(scaler)


def policies(hop: FirstHop, prefix: str = "") -> Iterator[Body]:
    """Whoever is in the cluster may ask the proxy; only the proxy, and who scrapes, reaches a server."""
    before, servers = {LABEL_NAME: hop.name}, {LABEL_SERVES: hop.servers}
    yield from ingress(NAMESPACE_SERVING, f"{prefix}ask", before, port=serving.PORT, peers=None)
    yield from ingress(NAMESPACE_SERVING, f"{prefix}answer", servers, port=serving.PORT, peers=before)
    if hop.health_port:
        yield from ingress(NAMESPACE_SERVING, f"{prefix}health", servers, port=hop.health_port, peers=before)
    yield scraped(NAMESPACE_SERVING, serving.PORT, serving.PROXY_METRICS_PORT, name=f"{prefix}scrape")
