"""Tests of the objects of a service: its windows, its scalers, its policies, its roll-outs."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.lint.engine import Options, lint_texts
from holdfast.manifests import serving
from holdfast.manifests.envoy import CARRIES, count_proxies
from holdfast.manifests.render_context import RenderContext
from holdfast.manifests.serving_router import STREAMS, count_routers
from holdfast.platform import Platform
from holdfast.services.explain import make_curl, mounts_keys
from holdfast.services.plan import placement
from holdfast.support.values import quantity
from holdfast.vocabulary.kubernetes import LABEL_NAMESPACE
from holdfast.vocabulary.serving import (
    BALANCER_SPREAD_S,
    CALLER_HEADER,
    DRAIN_PATH,
    HOOK_PORT,
    KEYS_FILE,
    LABEL_METRICS,
    PORT,
    READY_PATH,
    SIDECAR_PORT,
    drain_budget,
    sidecar_budget,
)
from tests.platforms import names, with_images
from tests.workloads.manifests import rendered
from tests.workloads.manifests.rendered import option
from workloads.library.tests.services import example_services
from workloads.library.tests.services.example_services import find, read, render

Body = dict[str, Any]


def find_spec(bodies: list[Body], kind: str, name: str) -> Body:
    return find(bodies, kind, name)["spec"]


def pod(bodies: list[Body], name: str) -> Body:
    deployment = find_spec(bodies, "Deployment", name)
    return deployment["template"]["spec"]


def find_main(bodies: list[Body], name: str) -> Body:
    """Returns the only container of a Deployment's pods."""
    (container,) = pod(bodies, name)["containers"]
    return container


def find_sidecar(spec: Body, name: str) -> Body:
    for container in spec["initContainers"]:
        if container["name"] == name:
            return container
    raise LookupError(name)


def find_proxy_config(bodies: list[Body], name: str) -> str:
    """Returns the text of a proxy's configuration for Envoy."""
    config = find(bodies, "ConfigMap", name)
    return config["data"]["envoy.json"]


def read_option(container: Body, name: str) -> str:
    return option(container["command"], name)


def read_window(container: Body) -> float:
    return float(read_option(container, "--window"))


def read_probe(container: Body) -> Body:
    return container["readinessProbe"]["httpGet"]


@pytest.mark.parametrize("tier", ["chat-base", "chat-overflow"])
def test_vllm_drains_within_its_grace_period(tier: str) -> None:
    spec = pod(render(read("chat")), tier)
    (vllm,) = spec["containers"]
    (sidecar,) = spec["initContainers"]
    window_s = read_window(sidecar)
    hold_s, timeout_s = sidecar_budget(window_s)
    assert window_s > hold_s + timeout_s
    assert spec["terminationGracePeriodSeconds"] == window_s
    shutdown_s = int(read_option(vllm, "--shutdown-timeout"))
    assert shutdown_s == int(timeout_s)
    assert shutdown_s > 0
    hook = vllm["lifecycle"]["preStop"]["httpGet"]
    assert hook == {"path": DRAIN_PATH, "port": HOOK_PORT}
    assert read_probe(vllm) == {"path": READY_PATH, "port": SIDECAR_PORT}
    assert read_option(sidecar, "--health") == f"http://127.0.0.1:{PORT}/health"
    assert sidecar["restartPolicy"] == "Always", "it must outlive the container that it drains"


def list_open_ports(bodies: list[Body], labels: dict[str, str]) -> dict[str, set[int]]:
    """Returns the ports of pods with `labels` that pods of one name may reach, by that name."""
    ports_by_name: dict[str, set[int]] = {}
    for body in bodies:
        if body["kind"] != "NetworkPolicy":
            continue
        policy = body["spec"]
        if policy["podSelector"].get("matchLabels") != labels:
            continue
        for rule in policy.get("ingress", ()):
            ports = {port["port"] for port in rule["ports"]}
            for peer in rule["from"]:
                (name,) = peer["podSelector"]["matchLabels"].values()
                open_ports = ports_by_name.setdefault(name, set())
                open_ports.update(ports)
    return ports_by_name


def test_streams_go_through_routers_to_vllm() -> None:
    bodies = render(read("chat"))
    proxy = pod(bodies, "chat-proxy")
    watch = find_sidecar(proxy, "watch")
    assert read_option(watch, "--service") == "chat-router"
    assert "--health-port" not in watch["command"], "a router answers probes where it is asked"
    assert '"timeout": "0s"' in find_proxy_config(bodies, "chat-proxy")
    routers = find_spec(bodies, "Service", "chat-router")
    servers = find_spec(bodies, "Service", "chat-servers")
    assert routers["clusterIP"] == "None"
    assert servers["clusterIP"] == "None"
    router = find_main(bodies, "chat-router")
    assert read_option(router, "--servers") == f"chat-servers:{PORT}"
    assert read_option(router, "--health-path") == READY_PATH
    assert read_option(router, "--health-port") == str(SIDECAR_PORT)
    ports_of_routers = list_open_ports(bodies, routers["selector"])
    assert ports_of_routers == {"chat-proxy": {PORT}}
    ports_of_servers = list_open_ports(bodies, servers["selector"])
    assert ports_of_servers == {"chat-router": {PORT, SIDECAR_PORT}}


def test_routers_stay_while_streams_last() -> None:
    bodies = render(read("chat"))
    spec = pod(bodies, "chat-router")
    router = find_main(bodies, "chat-router")
    window_s = read_window(router)
    assert window_s == spec["terminationGracePeriodSeconds"]
    proxy = pod(bodies, "chat-proxy")
    assert proxy["terminationGracePeriodSeconds"] == window_s
    drain = find_sidecar(proxy, "drain")
    assert read_window(drain) < window_s
    assert spec["priorityClassName"] == proxy["priorityClassName"]
    assert spec["nodeSelector"] == proxy["nodeSelector"], "on machines that are not preempted"
    assert read_probe(router) == {"path": READY_PATH, "port": PORT}
    budget = find_spec(bodies, "PodDisruptionBudget", "chat-router")
    assert budget["maxUnavailable"] == 1
    monitoring = find_spec(bodies, "PodMonitoring", "chat-router")
    (endpoint,) = monitoring["endpoints"]
    assert endpoint["port"] == PORT
    assert endpoint["path"] == "/metrics"


def check_target(scaler: Body, capacity: int) -> None:
    """Checks that a scaler adds a pod before the pods are full."""
    (metric,) = scaler["metrics"]
    target = int(metric["pods"]["target"]["averageValue"])
    assert 0 < target < capacity


def test_routers_carry_the_peak_with_one_lost() -> None:
    service = replace(read("chat"), inflight=400)
    bodies = render(service)
    scaler = find_spec(bodies, SCALER, "chat-router")
    largest = scaler["maxReplicas"]
    streams = 400 * (service.base_largest + service.overflow_replicas)
    assert largest == count_routers(streams)
    assert scaler["minReplicas"] == 2
    assert largest > 2
    assert (largest - 1) * STREAMS * 0.8 >= streams
    check_target(scaler, STREAMS)
    router = find_main(bodies, "chat-router")
    assert read_option(router, "--streams") == str(STREAMS)
    # The memory that the page of routers states: 50 MiB, bodies, and 0.5 MiB of each stream.
    memory_mib = 50 + 64 + STREAMS // 2
    limits = router["resources"]["limits"]
    assert quantity(limits["memory"]) >= memory_mib * 2**20


def test_predictors_need_no_router() -> None:
    for body in render(read("scores")):
        assert "router" not in body["metadata"]["name"]


def test_a_predictor_gets_its_deadline_and_the_proxy_the_same() -> None:
    bodies = render(replace(read("scores"), deadline_s=4.0))
    server = find_main(bodies, "scores-base")
    assert read_option(server, "--longest-request") == "4"
    assert '"timeout": "4s"' in find_proxy_config(bodies, "scores-proxy")
    budget = drain_budget(read_window(server))
    assert budget.longest_request_s > 4


@pytest.mark.parametrize("name", example_services.NAMES)
def test_the_linter_finds_nothing_in_a_service(name: str) -> None:
    texts = {f"{name}.yaml": example_services.render_text(name)}
    report = lint_texts(texts, Options(platforms=[with_images("example")]))
    assert not report.findings


def test_two_services_share_no_object_but_the_metrics() -> None:
    other = replace(read("chat"), name="chat-2")
    first_bodies: dict[tuple[str, str], Body] = {}
    shared_kinds: set[str] = set()
    for service in (read("chat"), other, read("scores")):
        for body in render(service):
            kind = body["kind"]
            key = (kind, body["metadata"]["name"])
            first = first_bodies.setdefault(key, body)
            if first is not body:
                shared_kinds.add(kind)
                assert body == first
    assert shared_kinds == {"AutoscalingMetric"}


def find_callers(name: str) -> list[Body]:
    """Returns the pods and namespaces that may call an example service."""
    policy = find_spec(render(read(name)), "NetworkPolicy", f"{name}-ask")
    return policy["ingress"][0]["from"]


def test_only_the_named_namespaces_may_call() -> None:
    namespaces: list[str] = []
    for peer in find_callers("chat"):
        labels = peer["namespaceSelector"]["matchLabels"]
        namespaces.append(labels[LABEL_NAMESPACE])
    assert namespaces == ["serving", "batch"]
    assert find_callers("scores") == [{"namespaceSelector": {}}]


def test_a_single_replica_stays_until_the_next_version_is_ready() -> None:
    deployment = find_spec(render(read("chat")), "Deployment", "chat-base")
    update = deployment["strategy"]["rollingUpdate"]
    assert update["maxSurge"] == 1
    assert update["maxUnavailable"] == 0


@pytest.mark.parametrize("name", ["chat", "scores"])
def test_watchers_share_rejections(name: str) -> None:
    """Those of predictors do it between servers, and those of models between routers."""
    spec = pod(render(read(name)), f"{name}-proxy")
    watcher = find_watcher(spec)
    assert "--share-rejections" in watcher["command"]


def find_watcher(spec: Body) -> Body:
    """Returns the container that watches servers."""
    watchers: list[Body] = []
    for container in spec["initContainers"]:
        if "endpoints" in container["command"]:
            watchers.append(container)
    (watcher,) = watchers
    return watcher


def test_keys_stay_in_their_secret() -> None:
    service = replace(read("scores"), keys="scores-keys", quota_per_s=20.0)
    bodies = render(service)
    spec = pod(bodies, "scores-proxy")
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["keys"]["secret"] == {"secretName": "scores-keys", "optional": True}
    assert volumes["endpoints"]["emptyDir"]["medium"] == "Memory"
    watcher = find_watcher(spec)
    mounts = {mount["name"]: mount["mountPath"] for mount in watcher["volumeMounts"]}
    assert read_option(watcher, "--keys") == mounts["keys"]
    (proxy,) = spec["containers"]
    for mount in proxy["volumeMounts"]:
        assert mount["name"] != "keys"
    config = find_proxy_config(bodies, "scores-proxy")
    folder, _, _ = read_option(watcher, "--out").rpartition("/")
    assert f"{folder}/{KEYS_FILE}" in config
    assert CALLER_HEADER in config, "the quota is of each caller"


@pytest.mark.parametrize(("keys", "has_keys"), [("scores-keys", True), ("", False)])
def test_the_first_request_has_a_key_where_one_is_needed(keys: str, has_keys: bool) -> None:
    service = replace(read("scores"), keys=keys)
    proxies = find(render(service), "Deployment", "scores-proxy")
    assert mounts_keys(proxies) == has_keys
    curl = make_curl("scores", "entropy", "http://here", has_keys=has_keys)
    sends_key = '-H "x-api-key: $KEY"' in curl
    assert sends_key == has_keys


def test_services_without_keys_ask_for_none() -> None:
    bodies = render(read("scores"))
    assert KEYS_FILE not in find_proxy_config(bodies, "scores-proxy")
    for volume in pod(bodies, "scores-proxy")["volumes"]:
        assert volume["name"] != "keys"


def test_fixed_services_need_no_scaler() -> None:
    fixed = replace(read("chat"), base=2, base_most=2, overflow_most=2)
    bodies = render(fixed)
    deployment = find_spec(bodies, "Deployment", "chat-base")
    assert deployment["replicas"] == 2
    scaler_names: set[str] = set()
    for body in bodies:
        if body["kind"] == SCALER:
            scaler_names.add(body["metadata"]["name"])
    assert scaler_names == {"chat-proxy", "chat-router"}


def has_samples(platform: Platform) -> bool:
    return any(serving.samples(RenderContext(platform)))


def test_an_environment_can_leave_the_sample_out() -> None:
    platform = with_images("example")
    assert platform.serving
    assert has_samples(platform)
    settings = replace(platform.serving, sample=False)
    assert not has_samples(replace(platform, serving=settings))


SCALER = "HorizontalPodAutoscaler"
PLACES = [*example_services.NAMES, *names()]


def load(place: str) -> list[Body]:
    """Returns the objects of an example service or of an environment."""
    if place in example_services.NAMES:
        return render(read(place))
    return rendered.load_objects(place)


@pytest.mark.parametrize("place", PLACES)
def test_every_scaler_reads_a_metric_that_is_rendered_too(place: str) -> None:
    bodies = load(place)
    metrics = collect_metrics(bodies)
    assert len(metrics) <= 20, "GKE takes 20 metrics in a cluster"
    scalers = [body for body in bodies if body["kind"] == SCALER]
    assert scalers
    for scaler in scalers:
        namespace = scaler["metadata"]["namespace"]
        metric_names = list_names(scaler)
        assert len(set(metric_names)) == len(metric_names)
        for name in metric_names:
            group, owner, metric = name.split("|")
            assert group == "autoscaling.gke.io"
            source = metrics[namespace, owner, metric]
            if source:
                check_source(bodies, scaler, source)


def collect_metrics(bodies: list[Body]) -> dict[tuple[str, str, str], Body]:
    """Returns the pod sources of all metrics, by namespace, object and name of the metric."""
    sources: dict[tuple[str, str, str], Body] = {}
    for body in bodies:
        if body["kind"] != "AutoscalingMetric":
            continue
        metadata = body["metadata"]
        for metric in body["spec"]["metrics"]:
            for name, source in list_metrics(metric):
                key = (metadata["namespace"], metadata["name"], name)
                assert key not in sources, f"two metrics of one name: {key}"
                sources[key] = source
    return sources


def list_metrics(metric: Body) -> list[tuple[str, Body]]:
    """Returns the names of an entry, each with its pod source; of a query it is empty."""
    if "promql" in metric:
        return [(metric["promql"]["name"], {})]
    gauges: list[tuple[str, Body]] = []
    source = metric["pod"]
    for container in source["containers"]:
        endpoint = container["endpoint"] | source["selector"]
        for entry in container["metrics"]:
            gauges.append((entry["gauge"]["name"], endpoint))
    return gauges


def list_names(scaler: Body) -> list[str]:
    metric_names: list[str] = []
    for metric in scaler["spec"]["metrics"]:
        field = metric["type"].lower()
        metric_names.append(metric[field]["metric"]["name"])
    return metric_names


def check_source(bodies: list[Body], scaler: Body, source: Body) -> None:
    """Checks that the pods of a scaler's Deployment have the label and the port of a metric."""
    target = scaler["spec"]["scaleTargetRef"]
    template = find_spec(bodies, "Deployment", target["name"])["template"]
    labels = source["matchLabels"]
    assert labels.items() <= template["metadata"]["labels"].items()
    assert list(labels) == [LABEL_METRICS]
    assert set(LABEL_METRICS) <= set("abcdefghijklmnopqrstuvwxyz-_"), "GKE takes no other label"
    (main,) = template["spec"]["containers"]
    ports = [port["containerPort"] for port in main["ports"]]
    assert source["port"] in ports


def test_proxies_carry_the_peak_with_one_lost() -> None:
    service = replace(read("scores"), inflight=200)
    scaler = find_spec(render(service), SCALER, "scores-proxy")
    largest = scaler["maxReplicas"]
    requests = 200 * (service.base_largest + service.overflow_replicas)
    assert largest == count_proxies(requests)
    assert largest > 2
    assert (largest - 1) * CARRIES * 0.8 >= requests
    check_target(scaler, CARRIES)


@pytest.mark.parametrize("name", example_services.NAMES)
def test_a_proxy_leaves_after_the_load_balancer_has_noticed(name: str) -> None:
    bodies = render(read(name))
    check = find_spec(bodies, "HealthCheckPolicy", name)["default"]
    policy = find_spec(bodies, "GCPBackendPolicy", name)["default"]
    spec = pod(bodies, f"{name}-proxy")
    drain = find_sidecar(spec, "drain")
    hold_s, rest_s = sidecar_budget(read_window(drain))
    interval_s = check["checkIntervalSec"]
    noticed_s = interval_s * (check["unhealthyThreshold"] + 1)
    assert check["timeoutSec"] <= interval_s
    assert hold_s >= noticed_s + BALANCER_SPREAD_S
    drained_s = policy["connectionDraining"]["drainingTimeoutSec"]
    assert hold_s + drained_s <= spec["terminationGracePeriodSeconds"]
    plan = placement.place(read(name), with_images("example"))
    longest_s = plan.longest_request_s
    assert min(drained_s, rest_s) >= longest_s
    assert policy["timeoutSec"] > longest_s
    http = check["config"]["httpHealthCheck"]
    probe = read_probe(spec["containers"][0])
    assert http["port"] == probe["port"]
    assert http["requestPath"] == probe["path"]


@pytest.mark.parametrize(("name", "is_stream"), [("chat", True), ("scores", False)])
def test_a_stream_is_longer_than_a_load_balancer_waits(name: str, is_stream: bool) -> None:
    backend = find_spec(render(read(name)), "GCPBackendPolicy", name)
    policy = backend["default"]
    is_long = policy["timeoutSec"] >= 86_400
    assert is_long is is_stream
    assert "iap" not in policy


def test_the_load_balancer_is_let_in_and_no_one_else() -> None:
    policy = find_spec(render(read("chat")), "NetworkPolicy", "chat-balancer")
    (rule,) = policy["ingress"]
    network = with_images("example").network
    cidrs = [peer["ipBlock"]["cidr"] for peer in rule["from"]]
    assert cidrs == [network.load_balancers_cidr, "35.191.0.0/16", "130.211.0.0/22"]
    ports = {port["port"] for port in rule["ports"]}
    assert ports == {PORT, SIDECAR_PORT}


def test_an_environment_without_load_balancers_has_no_way_in() -> None:
    platform = with_images("example")
    network = replace(platform.network, load_balancers_cidr="")
    bodies = render(read("scores"), replace(platform, network=network))
    kinds = {body["kind"] for body in bodies}
    assert not kinds & {"Gateway", "HTTPRoute", "GCPBackendPolicy", "HealthCheckPolicy"}
    proxy = pod(bodies, "scores-proxy")
    assert proxy["terminationGracePeriodSeconds"] == 30
