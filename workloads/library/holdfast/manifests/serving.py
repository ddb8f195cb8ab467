"""Online inference: an on-demand base and a Spot overflow behind one Service, with the platform's
proxy as the first hop.

Clients reach `serving`, whose pods are the proxy's, on machines that are not preempted. Behind it
are the pods of `server`, base and overflow, found by the proxy's own watcher: on a Spot notice a
pod stays in its Service until it has ended, and only the proxy's own health check ends its traffic.
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
from holdfast.manifests.policies import budget, ingress, scraped
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.manifests.serving_proxy import ANNOTATION_CAPACITY, SERVER, SERVING, FirstHop, proxies
from holdfast.manifests.training import gpu_size
from holdfast.platform.document import Serving
from holdfast.vocabulary import serving
from holdfast.vocabulary.capacity import ANNOTATION_RULE, PlacementRule
from holdfast.vocabulary.kubernetes import LABEL_NAME, PRIORITY_SERVING, PRIORITY_SPOT
from holdfast.vocabulary.pools import LABEL_ZONE, Pool
from holdfast.vocabulary.roles import NAMESPACE_SERVING

OVERFLOW_LEAST = 2  # in two zones: one preemption does not take it all
RUN = "train-gang"
# read by the linter: the base that stays when Spot goes
ANNOTATION_OVERFLOW = "holdfast.dev/overflow-of"
CALM_S = 300
"""Before replicas go: a model takes minutes to come back."""


def samples(context: RenderContext) -> Iterator[Body]:
    wanted = context.platform.serving
    if wanted is None:
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

    yield from tiers(context, wanted, SERVER, work, {serving.INFLIGHT: wanted.inflight_target})
    yield from proxies(context, SERVING, {ANNOTATION_CAPACITY: wanted.promise})
    yield from policies(SERVING)


def tiers(
    context: RenderContext,
    wanted: Serving,
    servers: str,
    work: Callable[[str, str, Pool], PodSettings],
    targets: dict[str, int],
) -> Iterator[Body]:
    """A base on demand and an overflow on Spot. `work`: of a name, a tier and its pool; `targets`:
    as of `scaler`.
    """
    base = f"{servers}-{serving.TIER_BASE}"
    for tier, pool, least, most in (
        (serving.TIER_BASE, base_pool(context), wanted.base_replicas, wanted.base_most),
        (serving.TIER_OVERFLOW, overflow_pool(context), OVERFLOW_LEAST, wanted.overflow_most),
    ):
        name = f"{servers}-{tier}"
        body = deployment(context, NAMESPACE_SERVING, work(name, tier, pool))
        if name != base:
            body["metadata"].setdefault("annotations", {})[ANNOTATION_OVERFLOW] = base
        yield body
        yield scaler(name, least, most, targets)
        yield budget(
            name,
            NAMESPACE_SERVING,
            name,
            "Upgrades take one replica at a time; preemption ignores this budget",
        )
    yield from found_by_proxy(servers)


def server(
    context: RenderContext, name: str, tier: str, pool: Pool, servers: str, **more: Any
) -> PodSettings:
    """Both tiers with the window of Spot: a client does not know which of them answers."""
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
        **more,
    )


def found_by_proxy(name: str) -> Iterator[Body]:
    """Pods with LABEL_SERVES with this value, for their proxy and for Prometheus."""
    # Without an address: the proxy chooses a pod for each request, not for each connection.
    spec = client.V1ServiceSpec(
        cluster_ip="None",
        selector={LABEL_SERVES: name},
        ports=[port()],
    )
    yield manifest("v1", "Service", meta(name, NAMESPACE_SERVING), spec=spec)
    yield scraping(name, {LABEL_SERVES: name}, serving.PORT)


def scaler(name: str, least: int, most: int, targets: dict[str, int]) -> Body:
    """By requests that run or wait, which grow with load; the time in the queue does not.
    `targets`: of each replica.
    """
    metrics = []
    for metric, target in targets.items():
        metrics.append(
            {
                "pods": {
                    "metric": {"name": f"prometheus.googleapis.com|{metric}|gauge"},
                    "target": {
                        "averageValue": str(target),
                        "type": "AverageValue",
                    },
                },
                "type": "Pods",
            }
        )
    return autoscaler(
        name,
        NAMESPACE_SERVING,
        least,
        most,
        metrics,
        CALM_S,
        scaleUp={"stabilizationWindowSeconds": 0},
    )


def policies(hop: FirstHop, prefix: str = "") -> Iterator[Body]:
    """Every pod of the cluster may ask the proxy; only the proxy, and who scrapes, reaches a
    server.
    """
    before = {LABEL_NAME: hop.name}
    servers = {LABEL_SERVES: hop.servers}
    yield from ingress(
        NAMESPACE_SERVING,
        f"{prefix}ask",
        before,
        port=serving.PORT,
        peers=None,
    )
    yield from ingress(
        NAMESPACE_SERVING,
        f"{prefix}answer",
        servers,
        port=serving.PORT,
        peers=before,
    )
    if hop.health_port:
        yield from ingress(
            NAMESPACE_SERVING,
            f"{prefix}health",
            servers,
            port=hop.health_port,
            peers=before,
        )
    yield scraped(
        NAMESPACE_SERVING, serving.PORT, serving.PROXY_METRICS_PORT, name=f"{prefix}scrape"
    )
