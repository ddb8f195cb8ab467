"""Tests of the objects of a service: its windows, its scalers, its policies, its roll-outs."""

import json
from dataclasses import replace
from typing import Any

import pytest

from holdfast.lint.engine import Options, lint_texts
from holdfast.manifests import serving
from holdfast.manifests.envoy import CARRIES, count_proxies
from holdfast.manifests.render_context import RenderContext
from holdfast.manifests.serving_router import STREAMS, count_routers
from holdfast.runtime import api_server
from holdfast.services.explain import make_curl, mounts_keys
from holdfast.services.plan import placement
from holdfast.support.values import quantity
from holdfast.vocabulary.kubernetes import LABEL_NAME, LABEL_NAMESPACE
from holdfast.vocabulary.serving import (
    ANNOTATION_IDLE,
    BALANCER_SPREAD_S,
    CALLER_HEADER,
    DRAIN_PATH,
    HOOK_PORT,
    KEYS_FILE,
    LABEL_METRICS,
    PORT,
    PROXIES_FILE,
    READY_PATH,
    SIDECAR_PORT,
    WAKE_HOLD_S,
    drain_budget,
    sidecar_budget,
)
from tests.platforms import names, with_images
from tests.workloads.manifests import rendered
from tests.workloads.manifests.rendered import option
from workloads.library.tests.services import example_services
from workloads.library.tests.services.example_services import find, read, render

Object = dict[str, Any]


def find_spec(bodies: list[Object], kind: str, name: str) -> Object:
    return find(bodies, kind, name)["spec"]


def pod(bodies: list[Object], name: str) -> Object:
    return find_spec(bodies, "Deployment", name)["template"]["spec"]


def find_container(spec: Object, name: str) -> Object:
    """Returns a container that starts before the main one."""
    for container in spec["initContainers"]:
        if container["name"] == name:
            return container
    raise KeyError(name)


def find_main(spec: Object) -> Object:
    (container,) = spec["containers"]
    return container


def find_window(container: Object) -> float:
    return float(option(container["command"], "--window"))


def read_envoy(bodies: list[Object], name: str) -> str:
    return find(bodies, "ConfigMap", name)["data"]["envoy.json"]


@pytest.mark.parametrize("tier", ["chat-base", "chat-overflow"])
def test_vllm_drains_within_its_grace_period(tier: str) -> None:
    spec = pod(render(read("chat")), tier)
    vllm = find_main(spec)
    sidecar = find_container(spec, "drain")
    window_s = find_window(sidecar)
    hold_s, timeout_s = sidecar_budget(window_s)
    assert spec["terminationGracePeriodSeconds"] == window_s > hold_s + timeout_s
    assert int(option(vllm["command"], "--shutdown-timeout")) == int(timeout_s) > 0
    assert vllm["lifecycle"]["preStop"]["httpGet"] == {"path": DRAIN_PATH, "port": HOOK_PORT}
    assert vllm["readinessProbe"]["httpGet"] == {"path": READY_PATH, "port": SIDECAR_PORT}
    assert option(sidecar["command"], "--health") == f"http://127.0.0.1:{PORT}/health"
    assert sidecar["restartPolicy"] == "Always", "it must outlive the container that it drains"


def list_open_ports(bodies: list[Object], labels: dict[str, str]) -> dict[str, set[int]]:
    """Returns the ports of pods with `labels` that pods of one name may reach, by that name."""
    ports: dict[str, set[int]] = {}
    for body in bodies:
        if body["kind"] != "NetworkPolicy":
            continue
        if body["spec"]["podSelector"].get("matchLabels") != labels:
            continue
        for rule in body["spec"].get("ingress", ()):
            numbers = {port["port"] for port in rule["ports"]}
            for peer in rule["from"]:
                (name,) = peer["podSelector"]["matchLabels"].values()
                ports.setdefault(name, set()).update(numbers)
    return ports


def test_streams_go_through_routers_to_vllm() -> None:
    bodies = render(read("chat"))
    watch = find_container(pod(bodies, "chat-proxy"), "watch")["command"]
    assert option(watch, "--service") == "chat-router"
    assert "--health-port" not in watch, "a router answers probes where it is asked"
    assert '"timeout": "0s"' in read_envoy(bodies, "chat-proxy")
    routers = find_spec(bodies, "Service", "chat-router")
    servers = find_spec(bodies, "Service", "chat-servers")
    assert routers["clusterIP"] == servers["clusterIP"] == "None"
    router = find_main(pod(bodies, "chat-router"))["command"]
    assert option(router, "--servers") == f"chat-servers:{PORT}"
    assert option(router, "--health-path") == READY_PATH
    assert option(router, "--health-port") == str(SIDECAR_PORT)
    assert list_open_ports(bodies, routers["selector"]) == {"chat-proxy": {PORT}}
    assert list_open_ports(bodies, servers["selector"]) == {"chat-router": {PORT, SIDECAR_PORT}}


def test_routers_stay_while_streams_last() -> None:
    bodies = render(read("chat"))
    spec = pod(bodies, "chat-router")
    router = find_main(spec)
    window_s = find_window(router)
    assert window_s == spec["terminationGracePeriodSeconds"]
    proxy = pod(bodies, "chat-proxy")
    assert proxy["terminationGracePeriodSeconds"] == window_s
    assert find_window(find_container(proxy, "drain")) < window_s
    assert spec["priorityClassName"] == proxy["priorityClassName"]
    assert spec["nodeSelector"] == proxy["nodeSelector"], "on machines that are not preempted"
    assert router["readinessProbe"]["httpGet"] == {"path": READY_PATH, "port": PORT}
    budget = find_spec(bodies, "PodDisruptionBudget", "chat-router")
    assert budget["maxUnavailable"] == 1
    (endpoint,) = find_spec(bodies, "PodMonitoring", "chat-router")["endpoints"]
    assert endpoint["port"] == PORT
    assert endpoint["path"] == "/metrics"


def test_routers_carry_the_peak_with_one_lost() -> None:
    service = replace(read("chat"), inflight=400)
    bodies = render(service)
    scaler = find_spec(bodies, SCALER, "chat-router")
    streams = 400 * (service.base_largest + service.overflow_replicas)
    assert scaler["maxReplicas"] == count_routers(streams) > scaler["minReplicas"] == 2
    assert (scaler["maxReplicas"] - 1) * STREAMS * 0.8 >= streams
    assert 0 < read_target(scaler) < STREAMS
    router = find_main(pod(bodies, "chat-router"))
    assert option(router["command"], "--streams") == str(STREAMS)
    # The memory that the page of routers states: 50 MiB, bodies, and 0.5 MiB of each stream.
    memory = quantity(router["resources"]["limits"]["memory"])
    assert memory >= (50 + 64 + STREAMS // 2) * 2**20


def read_target(scaler: Object) -> int:
    """Returns the value of a replica above which the scaler adds another one."""
    (metric,) = scaler["metrics"]
    return int(metric["pods"]["target"]["averageValue"])


def test_predictors_need_no_router() -> None:
    for body in render(read("scores")):
        assert "router" not in body["metadata"]["name"]


def test_a_predictor_gets_its_deadline_and_the_proxy_the_same() -> None:
    bodies = render(replace(read("scores"), deadline_s=4.0))
    server = find_main(pod(bodies, "scores-base"))
    assert option(server["command"], "--longest-request") == "4"
    assert '"timeout": "4s"' in read_envoy(bodies, "scores-proxy")
    assert drain_budget(find_window(server)).longest_request_s > 4


@pytest.mark.parametrize("name", example_services.NAMES)
def test_the_linter_finds_nothing_in_a_service(name: str) -> None:
    texts = {f"{name}.yaml": example_services.render_text(name)}
    report = lint_texts(texts, Options(platforms=[with_images("example")]))
    assert not report.findings


def test_two_services_share_no_object_but_the_metrics() -> None:
    other = replace(read("chat"), name="chat-2")
    bodies_by_title: dict[tuple[str, str], Object] = {}
    shared_kinds: set[str] = set()
    for service in (read("chat"), other, read("scores")):
        for body in render(service):
            kind = body["kind"]
            title = kind, body["metadata"]["name"]
            if title in bodies_by_title:
                shared_kinds.add(kind)
                assert body == bodies_by_title[title]
            bodies_by_title[title] = body
    assert shared_kinds == {"AutoscalingMetric"}


def test_only_the_named_namespaces_may_call() -> None:
    policy = find_spec(render(read("chat")), "NetworkPolicy", "chat-ask")
    (rule,) = policy["ingress"]
    callers: list[str] = []
    for peer in rule["from"]:
        labels = peer["namespaceSelector"]["matchLabels"]
        callers.append(labels[LABEL_NAMESPACE])
    assert callers == ["serving", "batch"]
    policy = find_spec(render(read("scores")), "NetworkPolicy", "scores-ask")
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"namespaceSelector": {}}]


def test_a_single_replica_stays_until_the_next_version_is_ready() -> None:
    bodies = render(read("chat"))
    update = find_spec(bodies, "Deployment", "chat-base")["strategy"]["rollingUpdate"]
    assert update == {"maxSurge": 1, "maxUnavailable": 0}


@pytest.mark.parametrize("name", ["chat", "scores"])
def test_watchers_share_rejections(name: str) -> None:
    """Those of predictors do it between servers, and those of models between routers."""
    spec = pod(render(read(name)), f"{name}-proxy")
    assert "--share-rejections" in find_container(spec, "watch")["command"]


def test_keys_stay_in_their_secret() -> None:
    service = replace(read("scores"), keys="scores-keys", quota_per_s=20.0)
    bodies = render(service)
    spec = pod(bodies, "scores-proxy")
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["keys"]["secret"] == {"secretName": "scores-keys", "optional": True}
    assert volumes["endpoints"]["emptyDir"]["medium"] == "Memory"
    watcher = find_container(spec, "watch")
    mounts = {mount["name"]: mount["mountPath"] for mount in watcher["volumeMounts"]}
    assert option(watcher["command"], "--keys") == mounts["keys"]
    for mount in find_main(spec)["volumeMounts"]:
        assert mount["name"] != "keys"
    config = read_envoy(bodies, "scores-proxy")
    folder = option(watcher["command"], "--out").rpartition("/")[0]
    assert f"{folder}/{KEYS_FILE}" in config
    assert CALLER_HEADER in config, "the quota is of each caller"


def find_quota(config: Object) -> Object:
    """Returns the quota of each caller."""
    (chain,) = config["static_resources"]["listeners"][0]["filter_chains"]
    filters = chain["filters"][0]["typed_config"]["http_filters"]
    for item in filters:
        if item["name"] == "quota":
            (descriptor,) = item["typed_config"]["descriptors"]
            return descriptor
    raise KeyError("quota")


def test_all_proxies_share_quotas() -> None:
    """Their watchers follow the Service that clients call, whose endpoints they are."""
    service = replace(
        read("chat"),
        keys="chat-keys",
        quota_per_s=1.0,
    )
    bodies = render(service)
    spec = pod(bodies, "chat-proxy")
    watcher = find_container(spec, "watch")["command"]
    clients = find_spec(bodies, "Service", option(watcher, "--proxies"))
    assert clients["selector"] == {LABEL_NAME: "chat-proxy"}
    config = json.loads(read_envoy(bodies, "chat-proxy"))
    local_name = config["cluster_manager"]["local_cluster_name"]
    clusters = {}
    for cluster in config["static_resources"]["clusters"]:
        clusters[cluster["name"]] = cluster
    discovery = clusters[local_name]["eds_cluster_config"]
    source = discovery["eds_config"]["path_config_source"]
    folder = option(watcher, "--out").rpartition("/")[0]
    assert source["path"] == f"{folder}/{PROXIES_FILE}"
    scaler = find_spec(bodies, "HorizontalPodAutoscaler", "chat-proxy")
    tokens = find_quota(config)["token_bucket"]["max_tokens"]
    assert tokens > scaler["maxReplicas"], "a request takes a token for each proxy"
    unlimited = render(replace(service, quota_per_s=0.0))
    spec = pod(unlimited, "chat-proxy")
    command = find_container(spec, "watch")["command"]
    assert "--proxies" not in command
    assert "cluster_manager" not in read_envoy(unlimited, "chat-proxy")


KEY_OPTION = '-H "x-api-key: $KEY"'
TOKEN_OPTION = '-H "authorization: Bearer'


@pytest.mark.parametrize(("keys", "header"), [("scores-keys", KEY_OPTION), ("", TOKEN_OPTION)])
def test_the_first_request_has_a_key_or_a_token(keys: str, header: str) -> None:
    """A token in addition would be judged as a key."""
    service = replace(read("scores"), keys=keys)
    proxies = find(render(service), "Deployment", "scores-proxy")
    curl = make_curl("scores", "entropy", "https://here", has_keys=mounts_keys(proxies))
    assert header in curl
    assert (KEY_OPTION in curl) != (TOKEN_OPTION in curl)


@pytest.mark.parametrize("way", ["keys", "members"])
def test_public_services_ask_for_keys_or_identities(way: str) -> None:
    example = with_images("example")
    network = replace(example.network, public_services=True, public_keys=True)
    public = replace(
        read("chat"),
        reach="external",
        hostname="chat.example.org",
        certificate="chat",
        keys="chat-keys" if way == "keys" else "",
        members=("group:team@example.org",) if way == "members" else (),
    )
    bodies = render(public, replace(example, network=network))
    listener = find_spec(bodies, "Gateway", "chat")["listeners"][0]
    assert listener["protocol"] == "HTTPS"
    policy = find_spec(bodies, "GCPBackendPolicy", "chat")["default"]
    assert ("iap" in policy) == (way == "members")
    proxies = find(bodies, "Deployment", "chat-proxy")
    assert mounts_keys(proxies) == (way == "keys")


def test_services_without_keys_ask_for_none() -> None:
    bodies = render(read("scores"))
    assert KEYS_FILE not in read_envoy(bodies, "scores-proxy")
    volumes = {volume["name"] for volume in pod(bodies, "scores-proxy")["volumes"]}
    assert "keys" not in volumes


def test_a_service_that_sleeps_is_scaled_by_its_routers() -> None:
    bodies = render(read("drafts"))
    servers = find(bodies, "Deployment", "drafts-base")
    assert "replicas" not in servers["spec"]
    assert servers["metadata"]["annotations"][ANNOTATION_IDLE] == "20"
    scaler = find(bodies, "HorizontalPodAutoscaler", "drafts-base")
    assert scaler["spec"]["minReplicas"] == 1
    router = find(bodies, "Deployment", "drafts-router")
    pod = router["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "drafts-router"
    (sidecar,) = pod["initContainers"]
    assert option(sidecar["command"], "--deployment") == "drafts-base"
    assert option(sidecar["command"], "--idle-minutes") == "20"
    (container,) = pod["containers"]
    assert option(container["command"], "--hold") == str(WAKE_HOLD_S)
    role = find(bodies, "Role", "drafts-router")
    granted = {}
    for rule in role["rules"]:
        granted[rule["resources"][0]] = (rule["resourceNames"], rule["verbs"])
    assert granted == {
        "deployments/scale": (["drafts-base"], ["get", "patch"]),
        "leases": (["drafts-router"], ["get", "patch"]),
    }


@pytest.mark.parametrize(
    ("name", "calling"),
    [("drafts-router", "idle-scaler"), ("drafts-proxy", "watch")],
)
def test_containers_that_read_requests_have_no_token(name: str, calling: str) -> None:
    spec = pod(render(read("drafts")), name)
    assert spec["automountServiceAccountToken"] is False
    with_token: list[str] = []
    for container in spec["initContainers"] + spec["containers"]:
        mounts = {mount["mountPath"] for mount in container.get("volumeMounts", [])}
        if str(api_server.ACCOUNT) in mounts:
            with_token.append(container["name"])
    assert with_token == [calling]


def test_other_routers_have_no_token() -> None:
    bodies = render(read("chat"))
    router = find(bodies, "Deployment", "chat-router")
    assert not router["spec"]["template"]["spec"]["automountServiceAccountToken"]
    assert "Lease" not in {body["kind"] for body in bodies}


def test_fixed_services_need_no_scaler() -> None:
    fixed = replace(read("chat"), base=2, base_most=2, overflow_most=2)
    bodies = render(fixed)
    assert find_spec(bodies, "Deployment", "chat-base")["replicas"] == 2
    scaled = {body["metadata"]["name"] for body in bodies if body["kind"] == SCALER}
    assert scaled == {"chat-proxy", "chat-router"}


def test_an_environment_can_leave_the_sample_out() -> None:
    platform = with_images("example")
    assert platform.serving and list(serving.samples(RenderContext(platform)))
    sizes = replace(platform.serving, sample=False)
    without = replace(platform, serving=sizes)
    assert not list(serving.samples(RenderContext(without)))


SCALER = "HorizontalPodAutoscaler"
PLACES = [*example_services.NAMES, *names()]


def load(place: str) -> list[Object]:
    """Returns the objects of an example service or of an environment."""
    if place in example_services.NAMES:
        return render(read(place))
    return rendered.load_objects(place)


@pytest.mark.parametrize("place", PLACES)
def test_every_scaler_reads_a_metric_that_is_rendered_too(place: str) -> None:
    bodies = load(place)
    metrics: dict[tuple[str, str], Object] = {}
    for body in bodies:
        if body["kind"] == "AutoscalingMetric":
            metadata = body["metadata"]
            for name, source in list_sources(body["spec"]["metrics"]):
                key = metadata["namespace"], f"autoscaling.gke.io|{metadata['name']}|{name}"
                assert key not in metrics, f"two metrics of one name: {key}"
                metrics[key] = source
    assert len(metrics) <= 20, "GKE takes 20 metrics in a cluster"
    scalers = [body for body in bodies if body["kind"] == SCALER]
    assert scalers
    for scaler in scalers:
        namespace = scaler["metadata"]["namespace"]
        names_of_scaler = list_names(scaler["spec"])
        assert len(set(names_of_scaler)) == len(names_of_scaler)
        for name in names_of_scaler:
            source = metrics[namespace, name]
            if source:
                check_source(bodies, scaler["spec"], source)


def list_sources(entries: list[Object]) -> list[tuple[str, Object]]:
    """Returns the names of metrics, each with its pod source; of a query it is empty."""
    gauges: list[tuple[str, Object]] = []
    for entry in entries:
        if "promql" in entry:
            gauges.append((entry["promql"]["name"], {}))
            continue
        pods = entry["pod"]
        for container in pods["containers"]:
            source = container["endpoint"] | pods["selector"]
            for metric in container["metrics"]:
                gauges.append((metric["gauge"]["name"], source))
    return gauges


def list_names(scaler: Object) -> list[str]:
    names_of_scaler: list[str] = []
    for metric in scaler["metrics"]:
        source = metric[metric["type"].lower()]
        names_of_scaler.append(source["metric"]["name"])
    return names_of_scaler


def check_source(bodies: list[Object], scaler: Object, source: Object) -> None:
    """Checks that the pods of a scaler's Deployment have the label and the port of a metric."""
    name = scaler["scaleTargetRef"]["name"]
    template = find_spec(bodies, "Deployment", name)["template"]
    labels = source["matchLabels"]
    assert labels.items() <= template["metadata"]["labels"].items()
    assert list(labels) == [LABEL_METRICS]
    assert set(LABEL_METRICS) <= set("abcdefghijklmnopqrstuvwxyz-_"), "GKE takes no other label"
    ports = find_main(template["spec"])["ports"]
    assert source["port"] in [port["containerPort"] for port in ports]


def test_proxies_carry_the_peak_with_one_lost() -> None:
    service = replace(read("scores"), inflight=200)
    bodies = render(service)
    scaler = find_spec(bodies, SCALER, "scores-proxy")
    servers = service.base_largest + service.overflow_replicas
    requests = 200 * servers
    assert scaler["maxReplicas"] == count_proxies(requests) > 2
    assert (scaler["maxReplicas"] - 1) * CARRIES * 0.8 >= requests
    assert 0 < read_target(scaler) < CARRIES


@pytest.mark.parametrize("name", example_services.NAMES)
def test_a_proxy_leaves_after_the_load_balancer_has_noticed(name: str) -> None:
    bodies = render(read(name))
    check = find_spec(bodies, "HealthCheckPolicy", name)["default"]
    policy = find_spec(bodies, "GCPBackendPolicy", name)["default"]
    spec = pod(bodies, f"{name}-proxy")
    hold_s, rest_s = sidecar_budget(find_window(find_container(spec, "drain")))
    noticed_s = check["checkIntervalSec"] * (check["unhealthyThreshold"] + 1)
    assert check["timeoutSec"] <= check["checkIntervalSec"]
    assert hold_s >= noticed_s + BALANCER_SPREAD_S
    drained_s = policy["connectionDraining"]["drainingTimeoutSec"]
    assert hold_s + drained_s <= spec["terminationGracePeriodSeconds"]
    longest_s = placement.place(read(name), with_images("example")).longest_request_s
    assert min(drained_s, rest_s) >= longest_s
    assert policy["timeoutSec"] > longest_s
    http = check["config"]["httpHealthCheck"]
    probe = find_main(spec)["readinessProbe"]["httpGet"]
    assert http["port"] == probe["port"]
    assert http["requestPath"] == probe["path"]


def test_a_stream_is_longer_than_a_load_balancer_waits_by_default() -> None:
    for name, is_stream in (("chat", True), ("scores", False)):
        policy = find_spec(render(read(name)), "GCPBackendPolicy", name)["default"]
        assert (policy["timeoutSec"] >= 86_400) is is_stream
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
    assert pod(bodies, "scores-proxy")["terminationGracePeriodSeconds"] == 30
