"""Builds the routers of text streams, between the proxy and the engines of a service.

A stream that loses its engine goes on at another one. A stream that loses its router is cut, so
routers are on demand and have minutes to end what they carry.
"""

# Why it is so: infra/decisions/0143.

from collections.abc import Iterator, Sequence
from math import ceil

from kubernetes import client

from holdfast.manifests import scaling, serving_sleep
from holdfast.manifests.deployments import deployment, port, probes, scraping
from holdfast.manifests.pods import PodSettings, Size
from holdfast.manifests.policies import budget, ingress
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.manifests.serving_proxy import HOST_NAME, SERVER, FirstHop
from holdfast.vocabulary import serving
from holdfast.vocabulary.capacity import ANNOTATION_RULE, PlacementRule
from holdfast.vocabulary.kubernetes import LABEL_NAME, PRIORITY_SERVING

ROUTERS = 2
STREAMS = 500
"""Streams that one router carries: at 40 tokens a second each, they take the whole of its CPU."""
_MEMORY_MIB = 1024
"""50 MiB, 64 MiB of bodies, and for each stream 0.5 MiB and four bytes a token."""
_SCALE_UP_SHARE = 0.6
"""Share of its streams, above which another router is added."""


def count_routers(requests: float) -> int:
    """Returns the routers that carry this many requests at once, with one of them lost."""
    return max(ROUTERS, ceil(requests / (serving.USABLE_SHARE * STREAMS)) + 1)


def routers(context: RenderContext, hop: FirstHop, servers: Sequence[str]) -> Iterator[Body]:
    """Builds the routers of a service. If it sleeps, they start and end its `servers`."""
    name = hop.routers
    namespace = hop.namespace
    labels = {LABEL_NAME: name}
    if hop.idle_minutes:
        yield from serving_sleep.rights(name, namespace, servers)
    yield deployment(context, namespace, _pods(context, hop, servers))
    gauge = serving.ROUTER_STREAMS_OPEN
    yield from scaling.metrics(namespace, [gauge])
    targets = {gauge: int(_SCALE_UP_SHARE * STREAMS)}
    replicas = (ROUTERS, count_routers(hop.requests))
    yield scaling.scaler(name, namespace, replicas, targets)
    yield scraping(name, labels, serving.PORT, namespace=namespace)
    yield budget(name, namespace, name, "A router's end cuts its streams: one at a time")
    # Without an address: the proxy chooses a router for each request.
    spec = client.V1ServiceSpec(cluster_ip="None", selector=labels, ports=[port()])
    yield manifest("v1", "Service", meta(name, namespace), spec=spec)
    proxy = {LABEL_NAME: hop.name}
    yield from ingress(namespace, f"{name}-route", labels, port=serving.PORT, peers=proxy)


def _pods(context: RenderContext, hop: FirstHop, servers: Sequence[str]) -> PodSettings:
    command = ["python", "-m", "holdfast", "serve", "router"]
    command += ["--servers", f"{hop.servers}:{serving.PORT}"]
    command += ["--port", str(serving.PORT), "--streams", str(STREAMS)]
    command += ["--window", str(serving.STREAM_WINDOW_S)]
    command += ["--health-path", serving.READY_PATH, "--health-port", str(hop.health_port)]
    # The account of the proxies: routers mount no token of it.
    account = hop.account or hop.name
    sidecars: list[client.V1Container] = []
    if hop.idle_minutes:
        account = hop.routers
        command += ["--hold", str(serving.WAKE_HOLD_S)]
        sidecars.append(serving_sleep.idle_scaler(context, hop, servers))
    return PodSettings(
        name=hop.routers,
        role=account,
        image=context.image(SERVER),
        command=command,
        size=Size(cpu="1", memory=f"{_MEMORY_MIB}Mi", disk="1Gi"),
        pool=context.system,
        priority=PRIORITY_SERVING,
        grace_s=serving.STREAM_WINDOW_S,
        sidecars_call_kubernetes=bool(hop.idle_minutes),
        sidecars=sidecars,
        ports=[serving.PORT],
        labels={serving.LABEL_METRICS: serving.ROUTER_STREAMS_OPEN.group},
        probes=probes(serving.PORT),
        annotations={ANNOTATION_RULE: PlacementRule.ONLINE.value},
        spread_over=HOST_NAME,
    )
