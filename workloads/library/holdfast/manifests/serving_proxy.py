"""Builds the proxy before the servers.

Its pods run Envoy, a watcher of the servers' endpoints, and the drain that Envoy lacks.
"""

# Why it is so: infra/decisions/0049.

import json
from collections.abc import Iterator
from dataclasses import dataclass

from kubernetes import client

from holdfast.manifests import scaling
from holdfast.manifests.deployments import deployment, port, probes, scraping
from holdfast.manifests.envoy import CARRIES, PROXY_MEMORY_MIB, Proxy, bootstrap, count_proxies
from holdfast.manifests.pods import PodSettings, Probes, Size, security_context, tcp_probe
from holdfast.manifests.policies import budget
from holdfast.manifests.rbac import bind_role
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.manifests.sidecar_tokens import token_mount
from holdfast.vocabulary import serving
from holdfast.vocabulary.capacity import ANNOTATION_RULE, PlacementRule
from holdfast.vocabulary.kubernetes import LABEL_NAME, PRIORITY_SERVING
from holdfast.vocabulary.roles import NAMESPACE_SERVING

SERVER = "server"  # the role: account and image
# the role in digests.json: a copy of Envoy's own image in the registry of the environment
ENVOY = "envoy"
PROXIES = 2
CONFIG_DIR = "/etc/envoy"
ENDPOINTS_DIR = "/run/endpoints"
KEYS_DIR = "/run/keys"
KEYS_VOLUME = "keys"
ANNOTATION_CAPACITY = "holdfast.dev/serving-capacity"
HOST_NAME = "kubernetes.io/hostname"
_SCALE_UP_SHARE = 0.6
"""Share of what a proxy carries, above which another one is added."""
_SPARE_S = 15
"""The part of a proxy's grace period after its drain. The hook gets all of the drain."""


@dataclass(frozen=True, kw_only=True)
class FirstHop:
    """Names and sizes of the pods that clients reach, and of what is before and behind them."""

    name: str
    servers: str
    """Headless Service of the servers."""
    clients: str
    """Service to which clients send requests."""
    rights: str = "endpoints"
    """Role and binding of its watcher."""
    account: str = ""
    """Account that the platform has made, with these rights; empty: one is made here."""
    health_port: int = 0
    """Port on which servers report readiness; 0: the port of requests."""
    namespace: str = NAMESPACE_SERVING
    window_s: int
    """Time of its servers after a Spot notice."""
    longest_request_s: float = 0.0
    """Time limit of a request other than of `/v1/`; 0: what the window leaves."""
    requests: int
    """Requests that all servers together have at once at the peak."""
    balanced: bool = False
    """A load balancer of Google is before it, and learns later that a proxy leaves."""
    keys: str = ""
    """Secret with the keys of callers; empty: a call needs no key."""
    quota_per_s: float = 0.0
    """Requests per second of each caller, over all proxies; 0: no quota."""
    routers: str = ""
    """Name of the routers of text streams before the servers; empty: there are none."""
    idle_minutes: int = 0
    """Time without a request after which the servers end; 0: they are always there."""

    @property
    def drain_s(self) -> int:
        """Time for which a proxy drains."""
        if self.routers:
            return serving.STREAM_WINDOW_S - _SPARE_S
        if self.balanced:
            return int(serving.find_balanced_window_s(self.window_s))
        return self.window_s

    @property
    def most(self) -> int:
        """The largest number of proxies."""
        return max(PROXIES, count_proxies(self.requests))


def first_hop(
    context: RenderContext,
    hop: FirstHop,
    annotations: dict[str, str] | None = None,
) -> Iterator[Body]:
    """Builds what clients reach; `annotations` are those of the Service for clients."""
    namespace = hop.namespace
    if not hop.account:
        yield from watcher_account(hop.name, hop.rights, namespace)
    yield _configuration(hop)
    yield deployment(context, namespace, first_hop_pods(context, hop))
    gauge = serving.PROXY_REQUESTS_ACTIVE
    target = int(_SCALE_UP_SHARE * CARRIES)
    yield from scaling.metrics(namespace, [gauge])
    yield scaling.scaler(hop.name, namespace, (PROXIES, hop.most), {gauge: target})
    yield scraping(
        hop.name,
        {LABEL_NAME: hop.name},
        serving.PROXY_METRICS_PORT,
        serving.PROXY_METRICS_PATH,
        namespace=namespace,
    )
    yield budget(hop.name, namespace, hop.name, "The first hop of every request: one at a time")
    spec = client.V1ServiceSpec(
        type="ClusterIP",
        selector={LABEL_NAME: hop.name},
        ports=[port()],
    )
    metadata = meta(hop.clients, namespace, annotations=annotations)
    yield manifest("v1", "Service", metadata, spec=spec)


def watcher_account(name: str, rights: str, namespace: str) -> Iterator[Body]:
    """Builds an account that may watch the endpoints of a namespace."""
    yield manifest(
        "v1", "ServiceAccount", meta(name, namespace), automountServiceAccountToken=False
    )
    rule = client.V1PolicyRule(
        api_groups=["discovery.k8s.io"],
        resources=["endpointslices"],
        verbs=["list", "watch"],
    )
    yield from bind_role(rights, [rule], namespace, account=name, account_namespace=namespace)


def _configuration(hop: FirstHop) -> Body:
    longest_s = hop.longest_request_s or serving.drain_budget(hop.window_s).longest_request_s
    proxy = Proxy(
        endpoints_file=f"{ENDPOINTS_DIR}/servers.json",
        longest_request_s=longest_s,
        keys_file=f"{ENDPOINTS_DIR}/{serving.KEYS_FILE}" if hop.keys else "",
        quota_per_s=hop.quota_per_s,
        proxies_file=f"{ENDPOINTS_DIR}/{serving.PROXIES_FILE}",
        most_proxies=hop.most + 1,  # a roll-out adds one
    )
    text = json.dumps(bootstrap(proxy), indent=2) + "\n"
    return manifest("v1", "ConfigMap", meta(hop.name, hop.namespace), data={"envoy.json": text})


def first_hop_pods(context: RenderContext, hop: FirstHop) -> PodSettings:
    """Makes the pods that clients reach."""
    admin = f"http://127.0.0.1:{serving.PROXY_ADMIN_PORT}"
    active_requests = f"{admin}/stats?filter=^http.requests.downstream_rq_active$"
    config_map = client.V1ConfigMapVolumeSource(name=hop.name)
    config = client.V1Volume(name="config", config_map=config_map)
    endpoints = client.V1Volume(
        name="endpoints",
        empty_dir=client.V1EmptyDirVolumeSource(
            size_limit="8Mi",
            medium="Memory" if hop.keys else None,  # keys are on no disk
        ),
    )
    drain = drain_sidecar(
        context,
        f"{admin}/ready",
        hop.drain_s,
        "--drain",
        f"{admin}/healthcheck/fail",
        "--count",
        active_requests,
    )
    return PodSettings(
        name=hop.name,
        role=hop.account or hop.name,
        image=context.image(ENVOY),
        command=[
            ENVOY,
            "-c",
            f"{CONFIG_DIR}/envoy.json",
            "-l",
            "warning",
            "--concurrency",
            "2",
        ],
        size=Size(cpu="500m", memory=f"{PROXY_MEMORY_MIB}Mi", disk="1Gi"),
        pool=context.system,
        priority=PRIORITY_SERVING,
        # Its machines are never preempted: the hook gets the window, and requests the rest.
        grace_s=hop.drain_s + _SPARE_S,
        sidecars_call_kubernetes=True,
        ports=[serving.PORT, serving.PROXY_METRICS_PORT],
        labels={serving.LABEL_METRICS: serving.PROXY_REQUESTS_ACTIVE.group},
        probes=Probes(
            readiness=probes(serving.SIDECAR_PORT).readiness,
            liveness=tcp_probe(serving.PORT, period_s=10),
        ),
        pre_stop=DRAIN_HOOK,
        sidecars=[drain, _watch_sidecar(context, hop)],
        volumes=[(config, CONFIG_DIR), (endpoints, ENDPOINTS_DIR)],
        other_volumes=list(_key_volumes(hop)),
        annotations={ANNOTATION_RULE: PlacementRule.ONLINE.value},
        spread_over=HOST_NAME,
    )


DRAIN_HOOK = client.V1LifecycleHandler(
    http_get=client.V1HTTPGetAction(path=serving.DRAIN_PATH, port=serving.HOOK_PORT)
)
"""preStop hook of the server in a pod with `drain_sidecar`."""


def _watch_sidecar(context: RenderContext, hop: FirstHop) -> client.V1Container:
    command = ["python", "-m", "holdfast", "serve", "endpoints"]
    command += ["--service", hop.routers or hop.servers, "--namespace", hop.namespace]
    if hop.health_port and not hop.routers:
        command += ["--health-port", str(hop.health_port)]
    if hop.routers or not hop.health_port:  # a foreign server knows no rejections
        command.append("--share-rejections")
    command += ["--out", f"{ENDPOINTS_DIR}/servers.json"]
    mounts = [token_mount(), client.V1VolumeMount(name="endpoints", mount_path=ENDPOINTS_DIR)]
    if hop.keys:
        command += ["--keys", KEYS_DIR]
        if hop.quota_per_s:
            command += ["--proxies", hop.clients]
        mounts.append(client.V1VolumeMount(name=KEYS_VOLUME, mount_path=KEYS_DIR, read_only=True))
    return sidecar(context, "watch", command, mounts)


def _key_volumes(hop: FirstHop) -> Iterator[client.V1Volume]:
    """Yields the Secret; without it the proxies start, and refuse every call."""
    if hop.keys:
        secret = client.V1SecretVolumeSource(secret_name=hop.keys, optional=True)
        yield client.V1Volume(name=KEYS_VOLUME, secret=secret)


def drain_sidecar(
    context: RenderContext, health_url: str, window_s: int, *options: str
) -> client.V1Container:
    """Builds the drain of a server that has none: its readiness, and the hook before SIGTERM."""
    words = [
        "python",
        "-m",
        "holdfast",
        "serve",
        "sidecar",
        "--health",
        health_url,
        "--window",
        str(window_s),
    ]
    return sidecar(context, "drain", [*words, *options], [])


def sidecar(
    context: RenderContext,
    name: str,
    command: list[str],
    mounts: list[client.V1VolumeMount],
    *,
    cpu: str = "100m",
    memory: str = "128Mi",
) -> client.V1Container:
    """Builds a container that starts before the main container and ends after it."""
    limits = {
        "cpu": cpu,
        "memory": memory,
        "ephemeral-storage": "64Mi",
    }
    scratch = client.V1VolumeMount(name="tmp", mount_path="/tmp")
    return client.V1Container(
        name=name,
        image=context.image(SERVER),
        image_pull_policy="Always",
        restart_policy="Always",
        command=command,
        resources=client.V1ResourceRequirements(limits=limits, requests=limits),
        security_context=security_context(),
        volume_mounts=[scratch, *mounts],
    )
