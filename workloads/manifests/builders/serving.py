"""Online inference: an on-demand base and a Spot overflow behind one Service, with a proxy of ours as the first hop.

Clients reach `serving`, whose pods are the proxy's, on machines that nobody takes away. Behind it stand the pods of
`server`, base and overflow alike, found by the proxy's own watcher: on a Spot notice nothing but a pod's own readiness
takes it out, and load balancers of the cloud do not look at that.
"""

# Why it is so: infra/decisions/0049.

import json
from collections.abc import Iterator

from kubernetes import client

from holdfast.contract import serving
from infra.contract.capacity import ANNOTATION_RULE, Capacity, PlacementRule
from infra.contract.kubernetes import LABEL_NAME, LABEL_PART_OF, PART_OF, PRIORITY_SERVING, PRIORITY_SPOT
from infra.contract.names import NAMESPACE_SERVING
from infra.contract.pools import LABEL_ZONE, Pool, Role
from infra.environments.serving import Serving
from workloads.manifests.builders.envoy import Proxy, bootstrap
from workloads.manifests.builders.pods import Probes, Size, Work, restricted, template
from workloads.manifests.builders.rbac import within
from workloads.manifests.builders.render_context import Body, RenderContext, marked, meta, plain
from workloads.manifests.builders.tenancy import budget, ingress, scraped
from workloads.manifests.builders.training import gpu_size

SERVER, PROXY, CLIENTS = "server", "proxy", "serving"
ENVOY = "envoy"  # the role in digests.json: a copy of Envoy's own image in the registry of the environment
PROXIES = 2
OVERFLOW_LEAST = 2  # in two zones: one preemption does not take it all
CONFIG_DIR, ENDPOINTS_DIR = "/etc/envoy", "/run/endpoints"
ANNOTATION_CAPACITY = "holdfast.dev/serving-capacity"
ANNOTATION_OVERFLOW = "holdfast.dev/overflow-of"  # read by the linter: the base that stays when Spot goes
HOST_NAME = "kubernetes.io/hostname"
MONITORING_API = "monitoring.googleapis.com/v1"
CALM_S = 300
"""Before replicas go: a model takes minutes to come back."""


def samples(context: RenderContext) -> Iterator[Body]:
    wanted = context.env.serving
    if wanted is None:
        return
    yield from _servers(context, wanted)
    yield from _proxy(context, wanted)
    yield from _policies()


# -- servers --


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
        yield _scaler(name, least, most, wanted.inflight_target)
        yield budget(name, NAMESPACE_SERVING, name, "Upgrades take one replica at a time; preemption asks nobody")
    yield plain(
        client.V1Service(
            api_version="v1",
            kind="Service",
            # Without an address: the proxy chooses a pod for each request, not for each connection.
            metadata=meta(SERVER, NAMESPACE_SERVING),
            spec=client.V1ServiceSpec(cluster_ip="None", selector={"holdfast.dev/serves": SERVER}, ports=[_port()]),
        )
    )
    yield _scraping()


def base_pool(context: RenderContext) -> Pool:
    return next(pool for pool in context.env.pools() if pool.role is Role.SERVING)


def overflow_pool(context: RenderContext) -> Pool:
    """The Spot pool with the base's accelerator, else that of batch."""
    wanted = base_pool(context).accelerator
    fitting = (p for p in context.env.pools() if p.capacity is Capacity.SPOT and p.accelerator == wanted)
    return next(fitting, context.batch)


def _server(context: RenderContext, name: str, tier: str, pool: Pool, window_s: int) -> Body:
    """Both tiers with the window of Spot: a client does not know which of them answers."""
    words = ["python", "-m", "holdfast", "serve", "run", "--checkpoints", context.checkpoints, "--run", "train-gang"]
    work = Work(
        name=name,
        role=SERVER,
        job=name,
        command=[*words, "--window", str(window_s), "--follow", "300"],
        size=gpu_size(pool),
        pool=pool,
        priority=PRIORITY_SPOT if pool.interruptible else PRIORITY_SERVING,
        grace_s=window_s,
        ports=[serving.PORT],
        probes=_probes(serving.PORT),
        labels={"holdfast.dev/serves": SERVER, serving.LABEL_TIER: tier},
        annotations={ANNOTATION_RULE: PlacementRule.ONLINE.value},
        spread_over=LABEL_ZONE,
    )
    return _deployment(context, name, work)


def _probes(port: int) -> Probes:
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


def _listening() -> client.V1Probe:
    return client.V1Probe(
        tcp_socket=client.V1TCPSocketAction(port=serving.PORT), period_seconds=10, failure_threshold=6
    )


def _deployment(context: RenderContext, name: str, work: Work, replicas: int | None = None) -> Body:
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


def _scaler(name: str, least: int, most: int, target: int) -> Body:
    """By requests that run or wait, which grow with load; the time in the queue does not."""
    metric = f"prometheus.googleapis.com|{serving.INFLIGHT}|gauge"
    source = client.V2PodsMetricSource(
        metric=client.V2MetricIdentifier(name=metric),
        target=client.V2MetricTarget(type="AverageValue", average_value=str(target)),
    )
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
            metrics=[client.V2MetricSpec(type="Pods", pods=source)],
            behavior=behavior,
        ),
    )
    return plain(scaler)


def _scraping() -> Body:
    """For managed Prometheus, which feeds the autoscaler and the alerts."""
    return marked(
        {
            "apiVersion": MONITORING_API,
            "kind": "PodMonitoring",
            "metadata": {
                "name": SERVER,
                "namespace": NAMESPACE_SERVING,
                "labels": {LABEL_NAME: SERVER, LABEL_PART_OF: PART_OF},
            },
            "spec": {
                "selector": {"matchLabels": {"holdfast.dev/serves": SERVER}},
                "endpoints": [{"port": serving.PORT, "interval": "15s"}],
            },
        }
    )


# -- the proxy before them --


def _proxy(context: RenderContext, wanted: Serving) -> Iterator[Body]:
    account = client.V1ServiceAccount(
        api_version="v1",
        kind="ServiceAccount",
        metadata=meta(PROXY, NAMESPACE_SERVING),
        automount_service_account_token=False,
    )
    yield plain(account)
    rules = [
        client.V1PolicyRule(api_groups=["discovery.k8s.io"], resources=["endpointslices"], verbs=["list", "watch"])
    ]
    yield from within("endpoints", rules, NAMESPACE_SERVING, account=PROXY, account_namespace=NAMESPACE_SERVING)
    yield _configuration(context)
    yield _deployment(context, PROXY, _proxy_work(context), PROXIES)
    yield budget(PROXY, NAMESPACE_SERVING, PROXY, "The first hop of every request: one at a time")
    yield plain(
        client.V1Service(
            api_version="v1",
            kind="Service",
            metadata=meta(CLIENTS, NAMESPACE_SERVING, annotations={ANNOTATION_CAPACITY: str(wanted)}),
            spec=client.V1ServiceSpec(type="ClusterIP", selector={LABEL_NAME: PROXY}, ports=[_port()]),
        )
    )


def _configuration(context: RenderContext) -> Body:
    longest_s = serving.drain_budget(overflow_pool(context).window.pod_s).longest_request_s
    proxy = Proxy(endpoints_file=f"{ENDPOINTS_DIR}/servers.json", longest_request_s=longest_s)
    text = json.dumps(bootstrap(proxy), indent=2) + "\n"
    return plain(
        client.V1ConfigMap(
            api_version="v1", kind="ConfigMap", metadata=meta(PROXY, NAMESPACE_SERVING), data={"envoy.json": text}
        )
    )


def _proxy_work(context: RenderContext) -> Work:
    window_s = overflow_pool(context).window.pod_s
    hook = client.V1HTTPGetAction(path=serving.DRAIN_PATH, port=serving.SIDECAR_PORT)
    admin = f"http://127.0.0.1:{serving.PROXY_ADMIN_PORT}"
    drain = ["python", "-m", "holdfast", "serve", "sidecar", "--health", f"{admin}/ready", "--window", str(window_s)]
    counted = f"{admin}/stats?filter=^http.requests.downstream_rq_active$"
    watch = ["python", "-m", "holdfast", "serve", "endpoints", "--service", SERVER, "--namespace", NAMESPACE_SERVING]
    configured = client.V1Volume(name="config", config_map=client.V1ConfigMapVolumeSource(name=PROXY))
    shared = client.V1Volume(name="endpoints", empty_dir=client.V1EmptyDirVolumeSource(size_limit="8Mi"))
    return Work(
        name=PROXY,
        role=PROXY,
        image=context.image(ENVOY),
        command=[ENVOY, "-c", f"{CONFIG_DIR}/envoy.json", "-l", "warning", "--concurrency", "2"],
        size=Size(cpu="500m", memory="512Mi", disk="1Gi"),
        pool=context.system,
        priority=PRIORITY_SERVING,
        # Its machines are never taken away: the hook has the whole grace, and a request the rest.
        grace_s=window_s + 15,
        calls_kubernetes=True,
        ports=[serving.PORT],
        probes=Probes(readiness=_probes(serving.SIDECAR_PORT).readiness, liveness=_listening()),
        pre_stop_get=hook,
        sidecars=[
            _beside(context, "drain", [*drain, "--drain", f"{admin}/healthcheck/fail", "--count", counted], []),
            _beside(
                context,
                "watch",
                [*watch, "--out", f"{ENDPOINTS_DIR}/servers.json"],
                [client.V1VolumeMount(name="endpoints", mount_path=ENDPOINTS_DIR)],
            ),
        ],
        volumes=[(configured, CONFIG_DIR), (shared, ENDPOINTS_DIR)],
        annotations={ANNOTATION_RULE: PlacementRule.ONLINE.value},
        spread_over=HOST_NAME,
    )


def _beside(
    context: RenderContext, name: str, command: list[str], mounts: list[client.V1VolumeMount]
) -> client.V1Container:
    """Started before Envoy, ended after it."""
    limits = {"cpu": "100m", "memory": "128Mi", "ephemeral-storage": "64Mi"}
    scratch = client.V1VolumeMount(name="tmp", mount_path="/tmp")
    return client.V1Container(
        name=name,
        image=context.image(SERVER),
        image_pull_policy="Always",
        restart_policy="Always",
        command=command,
        resources=client.V1ResourceRequirements(limits=limits, requests=limits),
        security_context=restricted(),
        volume_mounts=[scratch, *mounts],
    )


def _port() -> client.V1ServicePort:
    return client.V1ServicePort(name="http", port=serving.PORT, target_port=serving.PORT, app_protocol="http")


def _policies() -> Iterator[Body]:
    """Whoever is in the cluster may ask the proxy; only the proxy, and who scrapes, reaches a server."""
    proxies, servers = {LABEL_NAME: PROXY}, {"holdfast.dev/serves": SERVER}
    yield from ingress(NAMESPACE_SERVING, "ask", proxies, port=serving.PORT, peers=None)
    yield from ingress(NAMESPACE_SERVING, "answer", servers, port=serving.PORT, peers=proxies)
    yield scraped(NAMESPACE_SERVING, serving.PORT)
