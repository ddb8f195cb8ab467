"""Builds online inference: an on-demand base and a Spot overflow behind the platform's proxy.

Clients reach one Service, whose pods are the proxy's, on machines that are not preempted. The
proxy's own watcher finds the servers behind it, base and overflow: on a Spot notice a pod stays in
its Service until it has ended, and only the proxy's own health check ends its traffic.
"""

# Why it is so: infra/decisions/0049.

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kubernetes import client

from holdfast.manifests import scaling
from holdfast.manifests.deployments import (
    LABEL_SERVES,
    base_pool,
    deployment,
    overflow_pool,
    port,
    probes,
    scraping,
)
from holdfast.manifests.pods import PodSettings
from holdfast.manifests.policies import budget, ingress, policy, scrape
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.manifests.serving_proxy import ANNOTATION_CAPACITY, SERVER, FirstHop, first_hop
from holdfast.manifests.serving_router import routers
from holdfast.manifests.training import gpu_size
from holdfast.vocabulary import serving
from holdfast.vocabulary.capacity import ANNOTATION_RULE, PlacementRule
from holdfast.vocabulary.kubernetes import (
    LABEL_NAME,
    LABEL_NAMESPACE,
    PRIORITY_OVERFLOW,
    PRIORITY_SERVING,
)
from holdfast.vocabulary.pools import LABEL_ZONE, Pool
from holdfast.vocabulary.serving import MIN_OVERFLOW

RUN = "train-gang"
# The linter reads from it the base that stays when Spot is preempted.
ANNOTATION_OVERFLOW = "holdfast.dev/overflow-of"


@dataclass(frozen=True, kw_only=True)
class Tier:
    """A Deployment of servers, with its machines and its smallest and largest size."""

    name: str
    """TIER_BASE or TIER_OVERFLOW."""
    pool: Pool
    min_replicas: int
    max_replicas: int


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The servers of one service, and what clients reach."""

    name: str
    """Prefix of the names of its Deployments."""
    hop: FirstHop
    tiers: tuple[Tier, ...]
    work: Callable[[str, Tier], PodSettings]
    """Makes the pod of a Deployment, by its name and its tier."""
    targets: Mapping[serving.Gauge, int]
    """Values of a replica above which another one is added."""
    promise: str
    """The arithmetic of its sizes, in one sentence."""
    callers: tuple[str, ...] = ()
    """Namespaces whose pods may send requests; empty: every namespace of the cluster."""
    prefix: str = ""
    """Prefix of the names of its network policies."""


def samples(context: RenderContext) -> Iterator[Body]:
    """Builds the one service that an environment renders by itself: the model of the sample run."""
    settings = context.platform.serving
    if settings is None or not settings.sample:
        return
    window_s = overflow_pool(context).window.pod_s
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
    words += ["--window", str(window_s)]
    replicas = settings.base_most + settings.overflow_most
    hop = FirstHop(
        name="proxy",
        servers=SERVER,
        clients="serving",
        window_s=window_s,
        requests=replicas * settings.inflight_target,
    )

    def work(name: str, tier: Tier) -> PodSettings:
        return PodSettings(
            **server(name, tier, hop, serving.SERVER_REQUESTS),
            job=name,
            reads_run=RUN,
            command=words,
            size=gpu_size(tier.pool),
            probes=probes(serving.PORT),
        )

    base = Tier(
        name=serving.TIER_BASE,
        pool=base_pool(context),
        min_replicas=settings.base_replicas,
        max_replicas=settings.base_most,
    )
    overflow = Tier(
        name=serving.TIER_OVERFLOW,
        pool=overflow_pool(context),
        min_replicas=MIN_OVERFLOW,
        max_replicas=settings.overflow_most,
    )
    fleet = Fleet(
        name=SERVER,
        hop=hop,
        tiers=(base, overflow),
        work=work,
        targets={serving.SERVER_REQUESTS: settings.inflight_target},
        promise=settings.promise,
    )
    yield from objects(context, fleet)


def objects(context: RenderContext, fleet: Fleet) -> Iterator[Body]:
    """Builds everything of a service."""
    for tier in fleet.tiers:
        yield from _tier(context, fleet, tier)
    yield from scaling.metrics(fleet.hop.namespace, fleet.targets)
    yield from discovery(fleet.hop)
    if fleet.hop.routers:
        servers = [f"{fleet.name}-{tier.name}" for tier in fleet.tiers]
        yield from routers(context, fleet.hop, servers)
    yield from first_hop(context, fleet.hop, {ANNOTATION_CAPACITY: fleet.promise})
    yield from policies(fleet)


def _tier(context: RenderContext, fleet: Fleet, tier: Tier) -> Iterator[Body]:
    name = f"{fleet.name}-{tier.name}"
    namespace = fleet.hop.namespace
    work = fleet.work(name, tier)
    idle_minutes = fleet.hop.idle_minutes
    # A service that sleeps starts with one replica, which its autoscaler raises to the minimum.
    is_fixed = tier.min_replicas == tier.max_replicas and not idle_minutes
    body = deployment(
        context,
        namespace,
        work,
        tier.min_replicas if is_fixed else None,
        # A single replica stays until the next version is ready.
        unavailable=0 if tier.min_replicas == 1 else 1,
    )
    annotations: dict[str, str] = {}
    if idle_minutes:
        annotations[serving.ANNOTATION_IDLE] = str(idle_minutes)
    has_base = any(other.name == serving.TIER_BASE for other in fleet.tiers)
    if tier.name == serving.TIER_OVERFLOW and has_base:
        base = f"{fleet.name}-{serving.TIER_BASE}"
        annotations[ANNOTATION_OVERFLOW] = base
    if annotations:
        body["metadata"].setdefault("annotations", {}).update(annotations)
    yield body
    if not is_fixed:
        yield scaling.scaler(name, namespace, (tier.min_replicas, tier.max_replicas), fleet.targets)
    reason = "Upgrades take one replica at a time; preemption ignores this budget"
    yield budget(name, namespace, name, reason)


def server(name: str, tier: Tier, hop: FirstHop, gauge: serving.Gauge) -> dict[str, Any]:
    """Returns the settings that pods of all tiers share.

    Both tiers have the window of Spot: clients do not know which one answers.
    """
    return {
        "name": name,
        "role": SERVER,
        "pool": tier.pool,
        "priority": PRIORITY_OVERFLOW if tier.pool.interruptible else PRIORITY_SERVING,
        "grace_s": hop.window_s,
        "ports": [serving.PORT],
        "labels": {
            LABEL_SERVES: hop.servers,
            serving.LABEL_TIER: tier.name,
            serving.LABEL_METRICS: gauge.group,
        },
        "annotations": {ANNOTATION_RULE: PlacementRule.ONLINE.value},
        "spread_over": LABEL_ZONE,
    }


def discovery(hop: FirstHop) -> Iterator[Body]:
    """Builds what the proxy and Prometheus need to find the servers."""
    # Without an address: the proxy chooses a pod for each request, not for each connection.
    spec = client.V1ServiceSpec(
        cluster_ip="None",
        selector={LABEL_SERVES: hop.servers},
        ports=[port()],
    )
    yield manifest("v1", "Service", meta(hop.servers, hop.namespace), spec=spec)
    labels = {LABEL_SERVES: hop.servers}
    yield scraping(hop.servers, labels, serving.PORT, namespace=hop.namespace)


def policies(fleet: Fleet) -> Iterator[Body]:
    """Opens the proxy to the callers, and servers to the pods before them and Prometheus only."""
    hop = fleet.hop
    namespace = hop.namespace
    proxy = {LABEL_NAME: hop.name}
    askers = {LABEL_NAME: hop.routers or hop.name}
    servers = {LABEL_SERVES: hop.servers}
    ports = [{"port": serving.PORT, "protocol": "TCP"}]
    callers: list[Body] = []
    for caller in fleet.callers:
        labels = {LABEL_NAMESPACE: caller}
        callers.append({"namespaceSelector": {"matchLabels": labels}})
    rule = {"from": callers or [{"namespaceSelector": {}}], "ports": ports}
    yield policy(f"{fleet.prefix}ask", namespace, ["Ingress"], [rule], None, proxy)
    yield from ingress(
        namespace,
        f"{fleet.prefix}answer",
        servers,
        port=serving.PORT,
        peers=askers,
    )
    if hop.health_port:
        yield from ingress(
            namespace,
            f"{fleet.prefix}health",
            servers,
            port=hop.health_port,
            peers=askers,
        )
    scraped = (serving.PORT, serving.PROXY_METRICS_PORT)
    yield scrape(namespace, *scraped, name=f"{fleet.prefix}scrape")
