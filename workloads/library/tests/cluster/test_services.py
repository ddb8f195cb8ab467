"""Services on the real control plane, by the commands that a person types."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.clients.api import Api, ApiError, Object
from holdfast.commands import app
from holdfast.drill.serving.fleet import free_port
from holdfast.inference.router.idle_scaler import IdleScaler
from holdfast.manifests.render_context import RenderContext
from holdfast.runtime import api_server
from holdfast.services import live_service
from holdfast.services.file import file_text
from holdfast.services.file.service_file import ServiceSpec
from holdfast.support.errors import InputError, Stopped
from holdfast.vocabulary.environment import ENV_PLATFORM
from tests import platforms
from tests.cluster.sim import gke, metrics_adapter
from tests.cluster.sim.manager import OwnManager
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.cluster.test_platform import gke_kinds as gke_kinds
from tests.cluster.test_platform import platform_cleanup as platform_cleanup
from tests.workloads.manifests.rendered import option
from workloads.library.tests.cluster.objects import list_names, list_nodes, list_uids
from workloads.library.tests.cluster.test_deadline import Become
from workloads.library.tests.cluster.test_deadline import become as become
from workloads.library.tests.inference.router.fleet import HOST, Stream, engine, make_text, router
from workloads.library.tests.services import example_services
from workloads.operators import platform

EXAMPLE = platforms.with_images("example")
IMAGE = f"us-docker.pkg.dev/team/repo/scores@sha256:{'b' * 64}"
DEPLOYMENTS = "/apis/apps/v1/namespaces/serving/deployments"
pytestmark = [
    pytest.mark.timeout(1_200),
    pytest.mark.usefixtures("kueue", "gke_kinds", "platform_cleanup"),
]


@pytest.fixture
def holdfast(
    api: Api,
    world: World,
    cluster: OwnManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., Result]]:
    """Runs a command in an empty folder, against a cluster with the platform and its machines."""
    gke.install(api)
    list(platform.apply(api, RenderContext(EXAMPLE)))
    world.add_nodes(EXAMPLE.pool("system"), 3)
    world.add_nodes(EXAMPLE.pool("serving"), 4)
    world.add_nodes(EXAMPLE.pool("spot-l4-g2-standard-8"), 4)
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--kubeconfig", str(cluster.kubeconfig)])

    yield run
    for service in live_service.list_services(api):
        live_service.stop(api, service["metadata"]["name"])


def require_done(result: Result) -> Result:
    assert result.exit_code == 0, f"{result.output} {result.exception}"
    return result


def write(service: ServiceSpec) -> str:
    path = Path(f"{service.name}.yaml")
    path.write_text(file_text.dump(service))
    return str(path)


def is_ready(api: Api, name: str) -> bool:
    body = api.find(f"{DEPLOYMENTS}/{name}")
    if body is None:
        return False
    status: Object = body.get("status") or {}
    replicas = body["spec"]["replicas"]
    is_observed = status.get("observedGeneration") == body["metadata"]["generation"]
    counts = (status.get("readyReplicas"), status.get("updatedReplicas"), status.get("replicas"))
    return is_observed and counts == (replicas, replicas, replicas)


def wait_ready(api: Api, *names: str) -> None:
    until(f"{names} are ready", lambda: all(is_ready(api, name) for name in names))


def list_pods(api: Api, name: str) -> list[Object]:
    selector = f"app.kubernetes.io/name={name}"
    return list(api.items("/api/v1/namespaces/serving/pods", labelSelector=selector))


def test_page_commands_start_a_service(
    holdfast: Callable[..., Result], api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Types the commands, with the kubeconfig and the answer to the question added."""
    written, sent, explained = example_services.read_commands("holdfast new-service scores")
    document = platforms.write_document(EXAMPLE, tmp_path / "document")
    monkeypatch.setenv(ENV_PLATFORM, str(document))
    result = CliRunner().invoke(app, written, catch_exceptions=False)
    assert "wrote scores.yaml" in result.stderr and "always $" in result.stderr
    monkeypatch.delenv(ENV_PLATFORM)
    assert holdfast(*sent, "--max-usd-per-hour", "0.01", "--yes").exit_code == 4
    assert live_service.find(api, "scores") is None
    require_done(holdfast(*sent, "--yes"))
    wait_ready(api, "scores-base", "scores-overflow", "scores-proxy")
    lines = holdfast(*explained).stdout
    assert "scores in serving serves entropy" in lines
    assert "curl -sS http://scores.serving.svc" in lines
    listed, _, stopped = example_services.read_commands("holdfast list\n")
    (line,) = re.findall(".*scores.*", holdfast(*listed).stdout)
    assert line.split()[:4] == ["scores", "entropy", "2/2", "2/2"]
    assert isinstance(holdfast(*stopped).exception, InputError), "it asks, and no answer comes"
    result = require_done(holdfast(*stopped, "--yes"))
    assert "removed services/scores" in result.stderr
    until("its servers are gone", lambda: not list_pods(api, "scores-base"))
    assert "scores" not in holdfast(*listed).stdout


def test_two_services_start_roll_out_and_stop(holdfast: Callable[..., Result], api: Api) -> None:
    scores = replace(example_services.read("scores"), base=2, image=IMAGE)
    other = replace(scores, name="other", promised_per_s=0.0, peak_per_s=0.0)
    for service in (scores, other):
        result = require_done(holdfast("submit", write(service), "--yes"))
        assert f"applied Deployment/{service.name}-base" in result.stderr
    wait_ready(api, "scores-base", "scores-overflow", "scores-proxy", "other-base", "other-proxy")
    nodes = list_nodes(list_pods(api, "scores-base"))
    serving = api.items("/api/v1/nodes", labelSelector="holdfast.dev/pool-class=serving")
    assert len(nodes) == 2
    assert nodes <= set(list_names(serving))

    explained = holdfast("explain", "scores").stdout
    assert "scores in serving serves entropy" in explained
    assert "scores-base: 2 of 2 ready" in explained
    assert "http://scores.serving.svc.cluster.local:8080" in explained
    assert "curl -sS http://scores.serving.svc" in explained

    gateway = "/apis/gateway.networking.k8s.io/v1/namespaces/serving/gateways/scores"
    assert api.get(gateway)["spec"]["gatewayClassName"] == "gke-l7-rilb"
    address = {"type": "IPAddress", "value": "10.10.0.9"}
    api.merge(f"{gateway}/status", {"status": {"addresses": [address]}})
    explained = holdfast("explain", "scores").stdout
    assert "address:   http://10.10.0.9, from the VPC" in explained
    assert "curl -sS http://10.10.0.9/v2/models/scores/infer" in explained

    second = require_done(holdfast("submit", "scores.yaml", "--yes"))
    assert "roll-out" not in second.stderr
    before = list_uids(list_pods(api, "scores-base"))
    changed = replace(scores, image=IMAGE.replace("b", "c"), overflow_most=0, peak_per_s=0.0)
    result = holdfast("submit", write(changed), "--yes")
    assert "roll-out: scores-base gets new pods" in result.stderr
    assert "removed scores-overflow" in result.stderr
    wait_ready(api, "scores-base")
    until("the old pods are gone", lambda: not before & list_uids(list_pods(api, "scores-base")))
    assert api.find(f"{DEPLOYMENTS}/scores-overflow") is None
    assert is_ready(api, "other-base"), "another service is not touched"

    before = list_uids(list_pods(api, "other-base"))
    require_done(holdfast("submit", write(replace(other, base_most=3)), "--yes"))
    wait_ready(api, "other-base")
    is_same = before == list_uids(list_pods(api, "other-base"))
    assert is_same, "an autoscaler that is new takes no replica away"

    removal = holdfast("stop", "scores", "--yes", "--json")
    require_done(removal)
    assert "deployments/scores-base" in json.loads(removal.stdout)["removed"]
    until("it is gone", lambda: api.find(f"{DEPLOYMENTS}/scores-base") is None)
    assert live_service.find(api, "scores") is None
    assert list_names(live_service.list_services(api)) == ["other"]


def test_the_api_server_takes_every_load_balancer(
    holdfast: Callable[..., Result], api: Api
) -> None:
    public = replace(
        example_services.read("chat"),
        reach="external",
        hostname="chat.example.org",
        certificate="chat",
        members=("group:team@example.org",),
    )
    network = replace(EXAMPLE.network, public_services=True)
    for service in (public, example_services.read("chat"), example_services.read("scores")):
        for body in example_services.render(service, replace(EXAMPLE, network=network)):
            api.apply(api.path_of(body), body, dryRun="All")
    with pytest.raises(ApiError, match="drainingTimeoutSecs"):
        bodies = example_services.render(example_services.read("chat"))
        policy = example_services.find(bodies, "GCPBackendPolicy", "chat")
        policy["spec"]["default"]["connectionDraining"] = {"drainingTimeoutSecs": 1}
        api.apply(api.path_of(policy), policy, dryRun="All")


def test_names_that_are_taken_are_refused(holdfast: Callable[..., Result], api: Api) -> None:
    scores = replace(example_services.read("scores"), name="taken")
    taken = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "taken-proxy", "namespace": "serving"},
    }
    api.apply(api.path_of(taken), taken)
    error = holdfast("submit", write(scores), "--yes").exception
    assert isinstance(error, InputError) and "ConfigMap/taken-proxy is there" in error.got
    assert api.find(f"{DEPLOYMENTS}/taken-base") is None
    api.delete(api.path_of(taken))

    require_done(holdfast("submit", "taken.yaml", "--yes"))
    with pytest.raises(InputError, match="two services of one name"):
        live_service.require_new(api, "taken")
    Path("taken.yaml").unlink()
    other = write(replace(scores, predictor="my_model:make", image=IMAGE))
    error = holdfast("submit", other, "--yes").exception
    assert isinstance(error, Stopped) and "--replace" in error.fix
    require_done(holdfast("submit", other, "--yes", "--replace"))


def test_the_autoscaler_follows_the_load(
    holdfast: Callable[..., Result], api: Api, world: World, cluster: OwnManager
) -> None:
    """Scales from 4 to 20 replicas and back, with metrics and limits as rendered."""
    world.add_nodes(EXAMPLE.pool("spot-l4-g2-standard-8"), 16)
    scores = replace(example_services.read("scores"), name="busy", overflow_most=20)
    selector = "app.kubernetes.io/name=busy-overflow"
    assert cluster.host
    with metrics_adapter.running(api, cluster.host) as adapter:
        adapter.load[selector] = 4 * scores.inflight
        require_done(holdfast("submit", write(scores), "--yes"))
        wait_replicas(api, "busy-overflow", 4)
        adapter.load[selector] = 20 * scores.inflight
        wait_replicas(api, "busy-overflow", 20)
        scaler = "/apis/autoscaling/v2/namespaces/serving/horizontalpodautoscalers/busy-overflow"
        behavior = api.get(scaler)["spec"]["behavior"]
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 300
        # Five minutes of waiting would prove the control plane's clock, not our objects.
        soon = {"scaleDown": {"stabilizationWindowSeconds": 0}}
        api.merge(scaler, {"spec": {"behavior": soon}})
        adapter.load[selector] = 4 * scores.inflight
        wait_replicas(api, "busy-overflow", 4)
        assert "scaler" not in holdfast("explain", "busy").stdout


def wait_replicas(api: Api, name: str, count: int) -> None:
    def count_ready() -> bool:
        body = api.find(f"{DEPLOYMENTS}/{name}")
        status: Object = (body or {}).get("status") or {}
        return status.get("readyReplicas") == status.get("replicas") == count

    until(f"{name} has {count} replicas", count_ready, timeout_s=360)


def count_replicas(api: Api, name: str) -> int:
    return api.get(f"{DEPLOYMENTS}/{name}")["spec"]["replicas"]


def find_idle_command(api: Api, name: str) -> list[str]:
    router = api.get(f"{DEPLOYMENTS}/{name}-router")
    (sidecar,) = router["spec"]["template"]["spec"]["initContainers"]
    return sidecar["command"]


def run_idle_scaler(
    command: list[str], router_url: str, idle_s: float, stop: threading.Event
) -> threading.Thread:
    """Runs the idle scaler as the sidecar's command does, with the token of its pod."""
    assert option(command, "--idle-minutes") == "20"
    scaler = IdleScaler(
        router_url=router_url,
        namespace=option(command, "--namespace"),
        lease=option(command, "--lease"),
        deployments=[option(command, "--deployment")],
        idle_s=idle_s,
    )
    thread = threading.Thread(target=scaler.run, args=(stop.wait,))
    thread.start()
    return thread


def test_a_service_sleeps_until_it_is_asked(
    holdfast: Callable[..., Result],
    api: Api,
    become: Become,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs a router, its sidecar with the rendered rights, and an engine that the test starts with
    the pod.
    """
    written, sent, explained = example_services.read_commands("holdfast new-service drafts")
    document = platforms.write_document(EXAMPLE, tmp_path / "document")
    monkeypatch.setenv(ENV_PLATFORM, str(document))
    result = CliRunner().invoke(app, written, catch_exceptions=False)
    assert "$0.00 an hour while it sleeps" in result.stderr
    monkeypatch.delenv(ENV_PLATFORM)
    require_done(holdfast(*sent, "--yes"))
    wait_ready(api, "drafts-base")
    assert "drafts-base: 1 of 1 ready" in holdfast(*explained).stdout

    become("serving", "drafts-router")
    for name, resource in (("drafts-base", ""), ("drafts-router", "/scale")):
        with pytest.raises(OSError, match="403"):
            api_server.merge(f"{DEPLOYMENTS}/{name}{resource}", {}, timeout_s=10)
    port = free_port()
    stop = threading.Event()
    with router(tmp_path, "--servers", f"{HOST}:{port}", "--hold", "300", ready=0) as served:
        command = find_idle_command(api, "drafts")
        thread = run_idle_scaler(command, f"http://{HOST}:{served.port}", 5.0, stop)
        try:
            until("it sleeps", lambda: count_replicas(api, "drafts-base") == 0)
            until("its servers are gone", lambda: not list_pods(api, "drafts-base"))
            assert "drafts-base: asleep" in holdfast(*explained).stdout
            assert " asleep " in holdfast("list").stdout
            require_done(holdfast(*sent, "--yes"))
            assert count_replicas(api, "drafts-base") == 0, "a roll-out wakes no server"

            stream = Stream(served.port, {"prompt": "hello", "max_tokens": 20, "ignore_eos": True})
            wait_ready(api, "drafts-base")
            until("a server starts", lambda: len(list_pods(api, "drafts-base")) == 1)
            with engine(tmp_path, port=port):
                stream.wait()
            assert stream.is_whole
            assert stream.text == make_text("hello", 20)
            until("it sleeps again", lambda: count_replicas(api, "drafts-base") == 0)
        finally:
            stop.set()
            thread.join()
    require_done(holdfast("stop", "drafts", "--yes"))
    lease = "/apis/coordination.k8s.io/v1/namespaces/serving/leases/drafts-router"
    until("its Lease is gone", lambda: api.find(lease) is None)
