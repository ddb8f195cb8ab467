"""Tests of the objects of a service: its windows, its scalers, its policies, its roll-outs."""

from dataclasses import replace

import pytest

from holdfast.clients.api import Object
from holdfast.lint.engine import Options, lint_texts
from holdfast.manifests import serving
from holdfast.manifests.envoy import CARRIES, count_proxies
from holdfast.manifests.render_context import RenderContext
from holdfast.manifests.serving_router import STREAMS, count_routers
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


def pod(bodies: list[Object], name: str) -> Object:
    return find(bodies, "Deployment", name)["spec"]["template"]["spec"]


@pytest.mark.parametrize("tier", ["chat-base", "chat-overflow"])
def test_vllm_drains_within_its_grace_period(tier: str) -> None:
    spec = pod(render(read("chat")), tier)
    (vllm,) = spec["containers"]
    (sidecar,) = spec["initContainers"]
    window_s = float(option(sidecar["command"], "--window"))
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
            for peer in rule["from"]:
                (name,) = peer["podSelector"]["matchLabels"].values()
                ports.setdefault(name, set()).update(port["port"] for port in rule["ports"])
    return ports


def test_streams_go_through_routers_to_vllm() -> None:
    bodies = render(read("chat"))
    watch = next(c for c in pod(bodies, "chat-proxy")["initContainers"] if c["name"] == "watch")
    assert option(watch["command"], "--service") == "chat-router"
    assert "--health-port" not in watch["command"], "a router answers probes where it is asked"
    assert '"timeout": "0s"' in find(bodies, "ConfigMap", "chat-proxy")["data"]["envoy.json"]
    routers = find(bodies, "Service", "chat-router")["spec"]
    servers = find(bodies, "Service", "chat-servers")["spec"]
    assert routers["clusterIP"] == servers["clusterIP"] == "None"
    (router,) = pod(bodies, "chat-router")["containers"]
    assert option(router["command"], "--servers") == f"chat-servers:{PORT}"
    assert option(router["command"], "--health-path") == READY_PATH
    assert option(router["command"], "--health-port") == str(SIDECAR_PORT)
    assert list_open_ports(bodies, routers["selector"]) == {"chat-proxy": {PORT}}
    assert list_open_ports(bodies, servers["selector"]) == {"chat-router": {PORT, SIDECAR_PORT}}


def test_routers_stay_while_streams_last() -> None:
    bodies = render(read("chat"))
    spec = pod(bodies, "chat-router")
    (router,) = spec["containers"]
    window_s = float(option(router["command"], "--window"))
    assert window_s == spec["terminationGracePeriodSeconds"]
    proxy = pod(bodies, "chat-proxy")
    assert proxy["terminationGracePeriodSeconds"] == window_s
    drain = next(c for c in proxy["initContainers"] if c["name"] == "drain")
    assert float(option(drain["command"], "--window")) < window_s
    assert spec["priorityClassName"] == proxy["priorityClassName"]
    assert spec["nodeSelector"] == proxy["nodeSelector"], "on machines that are not preempted"
    assert router["readinessProbe"]["httpGet"] == {"path": READY_PATH, "port": PORT}
    budget = find(bodies, "PodDisruptionBudget", "chat-router")["spec"]
    assert budget["maxUnavailable"] == 1
    (endpoint,) = find(bodies, "PodMonitoring", "chat-router")["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == (PORT, "/metrics")


def test_routers_carry_the_peak_with_one_lost() -> None:
    service = replace(read("chat"), inflight=400)
    bodies = render(service)
    scaler = find(bodies, SCALER, "chat-router")["spec"]
    streams = 400 * (service.base_largest + service.overflow_replicas)
    assert scaler["maxReplicas"] == count_routers(streams) > scaler["minReplicas"] == 2
    assert (scaler["maxReplicas"] - 1) * STREAMS * 0.8 >= streams
    (metric,) = scaler["metrics"]
    assert 0 < int(metric["pods"]["target"]["averageValue"]) < STREAMS
    (router,) = pod(bodies, "chat-router")["containers"]
    assert option(router["command"], "--streams") == str(STREAMS)
    # The memory that the page of routers states: 50 MiB, bodies, and 0.5 MiB of each stream.
    assert quantity(router["resources"]["limits"]["memory"]) >= (50 + 64 + STREAMS // 2) * 2**20


def test_predictors_need_no_router() -> None:
    names_of_bodies = {body["metadata"]["name"] for body in render(read("scores"))}
    assert not [name for name in names_of_bodies if "router" in name]


def test_a_predictor_gets_its_deadline_and_the_proxy_the_same() -> None:
    bodies = render(replace(read("scores"), deadline_s=4.0))
    (server,) = pod(bodies, "scores-base")["containers"]
    assert option(server["command"], "--longest-request") == "4"
    assert '"timeout": "4s"' in find(bodies, "ConfigMap", "scores-proxy")["data"]["envoy.json"]
    window_s = float(option(server["command"], "--window"))
    assert drain_budget(window_s).longest_request_s > 4


@pytest.mark.parametrize("name", example_services.NAMES)
def test_the_linter_finds_nothing_in_a_service(name: str) -> None:
    texts = {f"{name}.yaml": example_services.render_text(name)}
    report = lint_texts(texts, Options(platforms=[with_images("example")]))
    assert not report.findings


def test_two_services_share_no_object_but_the_metrics() -> None:
    other = replace(read("chat"), name="chat-2")
    titles: dict[str, list[Object]] = {}
    for body in (*render(read("chat")), *render(other), *render(read("scores"))):
        titles.setdefault(f"{body['kind']}/{body['metadata']['name']}", []).append(body)
    shared = {title: bodies for title, bodies in titles.items() if len(bodies) > 1}
    assert {title.partition("/")[0] for title in shared} == {"AutoscalingMetric"}
    for bodies in shared.values():
        assert all(body == bodies[0] for body in bodies)


def test_only_the_named_namespaces_may_call() -> None:
    rule = find(render(read("chat")), "NetworkPolicy", "chat-ask")["spec"]["ingress"][0]
    labels = [peer["namespaceSelector"]["matchLabels"][LABEL_NAMESPACE] for peer in rule["from"]]
    assert labels == ["serving", "batch"]
    rule = find(render(read("scores")), "NetworkPolicy", "scores-ask")["spec"]["ingress"][0]
    assert rule["from"] == [{"namespaceSelector": {}}]


def test_a_single_replica_stays_until_the_next_version_is_ready() -> None:
    bodies = render(read("chat"))
    update = find(bodies, "Deployment", "chat-base")["spec"]["strategy"]["rollingUpdate"]
    assert (update["maxSurge"], update["maxUnavailable"]) == (1, 0)


@pytest.mark.parametrize("name", ["chat", "scores"])
def test_watchers_share_rejections(name: str) -> None:
    """Those of predictors do it between servers, and those of models between routers."""
    spec = pod(render(read(name)), f"{name}-proxy")
    watcher = find_watcher(spec)
    assert "--share-rejections" in watcher["command"]


def find_watcher(spec: Object) -> Object:
    """Returns the container that watches servers."""
    containers = spec["initContainers"]
    (watcher,) = [container for container in containers if "endpoints" in container["command"]]
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
    assert option(watcher["command"], "--keys") == mounts["keys"]
    (proxy,) = spec["containers"]
    for mount in proxy["volumeMounts"]:
        assert mount["name"] != "keys"
    config = find(bodies, "ConfigMap", "scores-proxy")["data"]["envoy.json"]
    folder = option(watcher["command"], "--out").rpartition("/")[0]
    assert f"{folder}/{KEYS_FILE}" in config
    assert CALLER_HEADER in config, "the quota is of each caller"


@pytest.mark.parametrize(("keys", "has_keys"), [("scores-keys", True), ("", False)])
def test_the_first_request_has_a_key_where_one_is_needed(keys: str, has_keys: bool) -> None:
    service = replace(read("scores"), keys=keys)
    proxies = find(render(service), "Deployment", "scores-proxy")
    assert mounts_keys(proxies) == has_keys
    curl = make_curl(
        "scores",
        "entropy",
        "http://here",
        has_keys=mounts_keys(proxies),
    )
    assert ('-H "x-api-key: $KEY"' in curl) == has_keys


def test_services_without_keys_ask_for_none() -> None:
    bodies = render(read("scores"))
    config = find(bodies, "ConfigMap", "scores-proxy")
    assert KEYS_FILE not in config["data"]["envoy.json"]
    volumes = {volume["name"] for volume in pod(bodies, "scores-proxy")["volumes"]}
    assert "keys" not in volumes


def test_fixed_services_need_no_scaler() -> None:
    fixed = replace(read("chat"), base=2, base_most=2, overflow_most=2)
    bodies = render(fixed)
    assert find(bodies, "Deployment", "chat-base")["spec"]["replicas"] == 2
    scaled = {body["metadata"]["name"] for body in bodies if body["kind"] == SCALER}
    assert scaled == {"chat-proxy", "chat-router"}


def test_an_environment_can_leave_the_sample_out() -> None:
    platform = with_images("example")
    assert platform.serving and list(serving.samples(RenderContext(platform)))
    without = replace(platform, serving=replace(platform.serving, sample=False))
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
    metrics: dict[tuple[str, str, str], Object] = {}
    for body in bodies:
        if body["kind"] == "AutoscalingMetric":
            for metric in body["spec"]["metrics"]:
                for name, source in list_metrics(metric):
                    key = (body["metadata"]["namespace"], body["metadata"]["name"], name)
                    assert key not in metrics, f"two metrics of one name: {key}"
                    metrics[key] = source
    assert len(metrics) <= 20, "GKE takes 20 metrics in a cluster"
    scalers = [body for body in bodies if body["kind"] == SCALER]
    assert scalers
    for scaler in scalers:
        namespace = scaler["metadata"]["namespace"]
        names_of_scaler = list_names(scaler)
        assert len(set(names_of_scaler)) == len(names_of_scaler)
        for name in names_of_scaler:
            group, owner, metric = name.split("|")
            assert group == "autoscaling.gke.io"
            source = metrics[namespace, owner, metric]
            if source:
                check_source(bodies, scaler, source)


def list_metrics(metric: Object) -> list[tuple[str, Object]]:
    """Returns the names of an entry, each with its pod source; of a query it is empty."""
    if "promql" in metric:
        return [(metric["promql"]["name"], {})]
    gauges: list[tuple[str, Object]] = []
    for container in metric["pod"]["containers"]:
        for entry in container["metrics"]:
            source = container["endpoint"] | metric["pod"]["selector"]
            gauges.append((entry["gauge"]["name"], source))
    return gauges


def list_names(scaler: Object) -> list[str]:
    return [
        metric[metric["type"].lower()]["metric"]["name"] for metric in scaler["spec"]["metrics"]
    ]


def check_source(bodies: list[Object], scaler: Object, source: Object) -> None:
    """Checks that the pods of a scaler's Deployment have the label and the port of a metric."""
    deployment = find(bodies, "Deployment", scaler["spec"]["scaleTargetRef"]["name"])
    template = deployment["spec"]["template"]
    assert source["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert list(source["matchLabels"]) == [LABEL_METRICS]
    assert set(LABEL_METRICS) <= set("abcdefghijklmnopqrstuvwxyz-_"), "GKE takes no other label"
    (main,) = template["spec"]["containers"]
    assert source["port"] in [port["containerPort"] for port in main["ports"]]


def test_proxies_carry_the_peak_with_one_lost() -> None:
    service = replace(read("scores"), inflight=200)
    bodies = render(service)
    scaler = find(bodies, SCALER, "scores-proxy")["spec"]
    servers = service.base_largest + service.overflow_replicas
    requests = 200 * servers
    assert scaler["maxReplicas"] == count_proxies(requests) > 2
    assert (scaler["maxReplicas"] - 1) * CARRIES * 0.8 >= requests
    (metric,) = scaler["metrics"]
    assert 0 < int(metric["pods"]["target"]["averageValue"]) < CARRIES


@pytest.mark.parametrize("name", example_services.NAMES)
def test_a_proxy_leaves_after_the_load_balancer_has_noticed(name: str) -> None:
    bodies = render(read(name))
    check = find(bodies, "HealthCheckPolicy", name)["spec"]["default"]
    policy = find(bodies, "GCPBackendPolicy", name)["spec"]["default"]
    spec = pod(bodies, f"{name}-proxy")
    drain = next(c for c in spec["initContainers"] if c["name"] == "drain")
    hold_s, rest_s = sidecar_budget(float(option(drain["command"], "--window")))
    noticed_s = check["checkIntervalSec"] * (check["unhealthyThreshold"] + 1)
    assert check["timeoutSec"] <= check["checkIntervalSec"]
    assert hold_s >= noticed_s + BALANCER_SPREAD_S
    drained_s = policy["connectionDraining"]["drainingTimeoutSec"]
    assert hold_s + drained_s <= spec["terminationGracePeriodSeconds"]
    longest_s = placement.place(read(name), with_images("example")).longest_request_s
    assert min(drained_s, rest_s) >= longest_s
    assert policy["timeoutSec"] > longest_s
    http = check["config"]["httpHealthCheck"]
    main = spec["containers"][0]["readinessProbe"]["httpGet"]
    assert (http["port"], http["requestPath"]) == (main["port"], main["path"])


def test_a_stream_is_longer_than_a_load_balancer_waits_by_default() -> None:
    for name, is_stream in (("chat", True), ("scores", False)):
        policy = find(render(read(name)), "GCPBackendPolicy", name)["spec"]["default"]
        assert (policy["timeoutSec"] >= 86_400) is is_stream
        assert "iap" not in policy


def test_the_load_balancer_is_let_in_and_no_one_else() -> None:
    (rule,) = find(render(read("chat")), "NetworkPolicy", "chat-balancer")["spec"]["ingress"]
    network = with_images("example").network
    cidrs = [peer["ipBlock"]["cidr"] for peer in rule["from"]]
    assert cidrs == [network.load_balancers_cidr, "35.191.0.0/16", "130.211.0.0/22"]
    assert {port["port"] for port in rule["ports"]} == {PORT, SIDECAR_PORT}


def test_an_environment_without_load_balancers_has_no_way_in() -> None:
    platform = with_images("example")
    network = replace(platform.network, load_balancers_cidr="")
    bodies = render(read("scores"), replace(platform, network=network))
    kinds = {body["kind"] for body in bodies}
    assert not kinds & {"Gateway", "HTTPRoute", "GCPBackendPolicy", "HealthCheckPolicy"}
    assert pod(bodies, "scores-proxy")["terminationGracePeriodSeconds"] == 30
