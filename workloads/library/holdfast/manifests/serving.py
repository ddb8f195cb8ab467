"""Builds online inference: an on-demand base and a Spot overflow behind the platform's proxy.

Clients reach `serving`, whose pods are the proxy's, on machines that are not preempted. The proxy's
own watcher finds the pods of `server` behind it, base and overflow: on a Spot notice a pod stays in
its Service until it has ended, and only the proxy's own health check ends its traffic.
"""

# Why it is so: infra/decisions/0049.

from collections.abc import Callable, Iterator
from typing import Any

from kubernetes import client

from holdfast.manifests.deployments import (
    LABEL_SERVES,
    autoscaler,
    base_pool,
    deployment,
    overflow_pool,
    port,
    probes,
    scraping,
)
from holdfast.manifests.pods import PodSettings
from holdfast.manifests.policies import budget, ingress, scrape
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.manifests.serving_proxy import ANNOTATION_CAPACITY, SERVER, SERVING, FirstHop, proxies
from holdfast.manifests.training import gpu_size
from holdfast.platform.document import Serving
from holdfast.vocabulary import serving
from holdfast.vocabulary.capacity import ANNOTATION_RULE, PlacementRule
from holdfast.vocabulary.kubernetes import LABEL_NAME, PRIORITY_SERVING, PRIORITY_SPOT
from holdfast.vocabulary.pools import LABEL_ZONE, Pool
from holdfast.vocabulary.roles import NAMESPACE_SERVING

# Replicas in two zones: one preemption does not take them all.
MIN_OVERFLOW = 2
RUN = "train-gang"
# The linter reads from it the base that stays when Spot is preempted.
ANNOTATION_OVERFLOW = "holdfast.dev/overflow-of"
SCALE_DOWN_S = 300
"""Time before replicas end: a model takes minutes to come back."""


def samples(context: RenderContext) -> Iterator[Body]:
    settings = context.platform.serving
    if settings is None:
        return
    words = [
        "python",
        "-m",
        "holdfast",
        "serve",
        "run",
        "--checkpoints",
        context.checkpoints,
        "--run",
        RUN,
    ]
    words += ["--window", str(overflow_pool(context).window.pod_s)]

    def work(name: str, tier: str, pool: Pool) -> PodSettings:
        return server(
            context,
            name,
            tier,
            pool,
            SERVER,
            job=name,
            reads_run=RUN,
            command=words,
            size=gpu_size(pool),
            probes=probes(serving.PORT),
        )

    yield from tiers(context, settings, SERVER, work, {serving.INFLIGHT: settings.inflight_target})
    yield from proxies(context, SERVING, {ANNOTATION_CAPACITY: settings.promise})
    yield from policies(SERVING)


def tiers(
    context: RenderContext,
    settings: Serving,
    servers: str,
    work: Callable[[str, str, Pool], PodSettings],
    targets: dict[str, int],
) -> Iterator[Body]:
    """Builds a base on demand and an overflow on Spot.

    `work` makes the pod of a name, a tier and its pool; `targets` are those of `scaler`.
    """
    base = f"{servers}-{serving.TIER_BASE}"
    body = deployment(context, NAMESPACE_SERVING, work(base, serving.TIER_BASE, base_pool(context)))
    yield body
    yield scaler(base, settings.base_replicas, settings.base_most, targets)
    yield _replica_budget(base)
    overflow = f"{servers}-{serving.TIER_OVERFLOW}"
    overflow_work = work(overflow, serving.TIER_OVERFLOW, overflow_pool(context))
    body = deployment(context, NAMESPACE_SERVING, overflow_work)
    body["metadata"].setdefault("annotations", {})[ANNOTATION_OVERFLOW] = base
    yield body
    yield scaler(overflow, MIN_OVERFLOW, settings.overflow_most, targets)
    yield _replica_budget(overflow)
    yield from discovery(servers)


def _replica_budget(name: str) -> Body:
    reason = "Upgrades take one replica at a time; preemption ignores this budget"
    return budget(name, NAMESPACE_SERVING, name, reason)


def server(
    context: RenderContext, name: str, tier: str, pool: Pool, servers: str, **settings: Any
) -> PodSettings:
    """Makes a pod of a tier, with the window of Spot: clients do not know which tier answers."""
    return PodSettings(
        name=name,
        role=SERVER,
        pool=pool,
        priority=PRIORITY_SPOT if pool.interruptible else PRIORITY_SERVING,
        grace_s=overflow_pool(context).window.pod_s,
        ports=[serving.PORT],
        labels={LABEL_SERVES: servers, serving.LABEL_TIER: tier},
        annotations={ANNOTATION_RULE: PlacementRule.ONLINE.value},
        spread_over=LABEL_ZONE,
        **settings,
    )


def discovery(name: str) -> Iterator[Body]:
    """Builds what their proxy and Prometheus need to find the pods with this LABEL_SERVES."""
    # Without an address: the proxy chooses a pod for each request, not for each connection.
    spec = client.V1ServiceSpec(
        cluster_ip="None",
        selector={LABEL_SERVES: name},
        ports=[port()],
    )
    yield manifest("v1", "Service", meta(name, NAMESPACE_SERVING), spec=spec)
    yield scraping(name, {LABEL_SERVES: name}, serving.PORT)


def scaler(name: str, min_replicas: int, max_replicas: int, targets: dict[str, int]) -> Body:
    """Scales by requests that run or wait, which grow with load; the time in the queue does not.

    `targets` are the values of metrics for each replica.
    """
    metrics: list[Body] = []
    for metric, target in targets.items():
        source = {
            "metric": {"name": f"prometheus.googleapis.com|{metric}|gauge"},
            "target": {
                "averageValue": str(target),
                "type": "AverageValue",
            },
        }
        metrics.append({"pods": source, "type": "Pods"})
    return autoscaler(
        name,
        NAMESPACE_SERVING,
        min_replicas,
        max_replicas,
        metrics,
        SCALE_DOWN_S,
        scaleUp={"stabilizationWindowSeconds": 0},
    )


def policies(hop: FirstHop, prefix: str = "") -> Iterator[Body]:
    """Opens the proxy to every pod of the cluster, and servers to the proxy and Prometheus only."""
    proxy = {LABEL_NAME: hop.name}
    servers = {LABEL_SERVES: hop.servers}
    yield from ingress(
        NAMESPACE_SERVING,
        f"{prefix}ask",
        proxy,
        port=serving.PORT,
        peers=None,
    )
    yield from ingress(
        NAMESPACE_SERVING,
        f"{prefix}answer",
        servers,
        port=serving.PORT,
        peers=proxy,
    )
    if hop.health_port:
        yield from ingress(
            NAMESPACE_SERVING,
            f"{prefix}health",
            servers,
            port=hop.health_port,
            peers=proxy,
        )
    ports = (serving.PORT, serving.PROXY_METRICS_PORT)
    yield scrape(NAMESPACE_SERVING, *ports, name=f"{prefix}scrape")
