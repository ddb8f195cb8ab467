"""Turns a service into the objects that the cluster gets.

The objects are made by the builders of the platform's own sample.
"""

from holdfast.manifests import gateway
from holdfast.manifests.deployments import probes
from holdfast.manifests.pods import PodSettings, Size
from holdfast.manifests.render_context import Body, RenderContext
from holdfast.manifests.serving import Fleet, Tier, objects, server
from holdfast.manifests.serving_proxy import FirstHop
from holdfast.manifests.serving_vllm import WAITING_TARGET, engine
from holdfast.services.file.service_file import Engine, Reach, ServiceSpec
from holdfast.services.plan.placement import Placed
from holdfast.vocabulary import serving
from holdfast.vocabulary.machines import MACHINE_TYPES
from holdfast.vocabulary.roles import NAMESPACE_SERVING, TEAM_PROXY
from holdfast.vocabulary.serving import LABEL_SERVICE

ANNOTATION_SOURCE = "holdfast.dev/service-source"
"""Annotation of the Service for clients: the model or the predictor that answers."""
SHARED = "AutoscalingMetric"
HOMELESS = {"USER": "nonroot", "LOGNAME": "nonroot", "XDG_CACHE_HOME": "/tmp/.cache"}


def bodies(service: ServiceSpec, context: RenderContext, placed: Placed) -> list[Body]:
    """Return the objects in the order in which they are sent."""
    hop = _make_hop(service, placed)

    def work(name: str, tier: Tier) -> PodSettings:
        if service.engine is Engine.VLLM:
            return _make_engine(service, context, name, tier, hop)
        return _make_predictor(service, placed, name, tier, hop)

    fleet = Fleet(
        name=service.name,
        hop=hop,
        tiers=placed.tiers,
        work=work,
        targets=_list_targets(service),
        promise=service.promise,
        callers=service.caller_namespaces,
        prefix=f"{service.name}-",
    )
    bodies = list(objects(context, fleet))
    if hop.balanced:
        bodies += gateway.objects(_make_way_in(service, context, placed, hop))
    for body in bodies:
        if body["kind"] != SHARED:
            body["metadata"]["labels"][LABEL_SERVICE] = service.name
        if (body["kind"], body["metadata"]["name"]) == ("Service", hop.clients):
            body["metadata"]["annotations"][ANNOTATION_SOURCE] = service.source
    return bodies


def _make_hop(service: ServiceSpec, placed: Placed) -> FirstHop:
    replicas = sum(tier.max_replicas for tier in placed.tiers)
    return FirstHop(
        name=f"{service.name}-proxy",
        servers=f"{service.name}-servers",
        clients=service.name,
        rights=f"{service.name}-endpoints",
        account="" if service.home == NAMESPACE_SERVING else TEAM_PROXY,
        namespace=service.home,
        health_port=serving.SIDECAR_PORT if service.engine is Engine.VLLM else 0,
        window_s=placed.window_s,
        longest_request_s=placed.longest_request_s,
        requests=replicas * service.inflight,
        balanced=placed.reach is not Reach.CLUSTER,
        keys=service.keys,
        quota_per_s=service.quota_per_s,
        routers=f"{service.name}-router" if service.engine is Engine.VLLM else "",
        idle_minutes=service.idle_minutes if service.may_sleep else 0,
    )


def _make_way_in(
    service: ServiceSpec, context: RenderContext, placed: Placed, hop: FirstHop
) -> gateway.WayIn:
    # The load balancer waits a second longer than the proxy, which answers the client.
    longest_s = placed.longest_request_s + 1
    if service.engine is Engine.VLLM:
        longest_s = serving.BALANCER_STREAM_S
    return gateway.WayIn(
        service=hop.clients,
        proxy=hop.name,
        namespace=hop.namespace,
        subnet=context.platform.network.load_balancers_cidr,
        window_s=hop.drain_s,
        longest_s=longest_s,
        external=placed.reach is Reach.EXTERNAL,
        asks_identity=bool(service.members),
        hostname=service.hostname,
        certificate=service.certificate,
    )


def _list_targets(service: ServiceSpec) -> dict[serving.Gauge, int]:
    if service.engine is Engine.PREDICTOR:
        return {serving.SERVER_REQUESTS: service.inflight}
    return {serving.ENGINE_RUNNING: service.inflight, serving.ENGINE_WAITING: WAITING_TARGET}


def _size(service: ServiceSpec, tier: Tier) -> Size:
    """Return the part of a machine that belongs to the GPUs of a replica."""
    return Size.share(MACHINE_TYPES[tier.pool.machine_type], service.gpu_count)


def _make_engine(
    service: ServiceSpec, context: RenderContext, name: str, tier: Tier, hop: FirstHop
) -> PodSettings:
    options = [service.model.rstrip("/"), "--load-format", "runai_streamer"]
    options += ["--served-model-name", service.name]
    if service.gpu_count > 1:
        options += ["--tensor-parallel-size", str(service.gpu_count)]
    if service.context:
        options += ["--max-model-len", str(service.context)]
    return engine(
        context,
        name,
        tier,
        hop,
        size=_size(service, tier),
        options=[*options, *service.options],
        image=service.image,
        compile_cache=service.compile_cache_folder,
    )


def _make_predictor(
    service: ServiceSpec, placed: Placed, name: str, tier: Tier, hop: FirstHop
) -> PodSettings:
    command = ["python", "-m", "holdfast", "serve", "run", "--predictor", service.predictor]
    if service.folder:
        command += ["--model", service.folder]
    command += ["--name", service.name, "--window", str(placed.window_s)]
    command += ["--longest-request", f"{placed.longest_request_s:g}"]
    return PodSettings(
        **server(name, tier, hop, serving.SERVER_REQUESTS),
        job=name,
        image=service.image,
        command=[*command, *service.options],
        size=_size(service, tier),
        env=HOMELESS,
        probes=probes(serving.PORT),
    )
