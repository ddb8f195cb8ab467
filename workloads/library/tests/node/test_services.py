"""Services of a stranger through ten preemptions, by the commands of the page alone.

Real control plane, kubelets and Spot shutdowns, and images as built: server, sidecars and routers
with the platform's own, the predictor and the program `vllm` in images on top of it. Nothing that
`submit` sends is changed. The lab replaces kube-proxy, the cluster's DNS and Envoy's own image, and
makes pods smaller when they are created. Of Google's kinds there are no controllers: no load
balancer, and no metrics for the autoscalers.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from holdfast.clients.api import Object
from holdfast.drill.serving.load import Load
from holdfast.drill.serving.text_streams import StreamLoad
from holdfast.jobs.diagnose.job_snapshot import condition
from holdfast.manifests.render_context import RenderContext
from holdfast.vocabulary.kubernetes import LABEL_NAME
from holdfast.vocabulary.roles import NAMESPACE_SERVING
from holdfast.vocabulary.serving import PORT, ROUTER_MOVED
from tests import platforms, support
from tests.cluster.sim import flex, gke
from tests.cluster.sim.waiting import until
from tests.workloads.images.registry import Registry, serving
from workloads.library.tests.node.conftest import find_missing
from workloads.library.tests.node.lab import images, names, service_addresses, sizes
from workloads.library.tests.node.lab.lab import Lab, Machine
from workloads.library.tests.node.test_serving import envoy
from workloads.library.tests.services import example_services
from workloads.manifests import rendering

EXAMPLE = platforms.load("example")
SPACE = f"/api/v1/namespaces/{NAMESPACE_SERVING}"
STRANGERS = Path(__file__).parent / "strangers"
PREDICTOR_PAGE = example_services.PAGE.parent / "serve-a-model.md"
SPOT_POOL = "spot-l4-g2-standard-8"
PREEMPTIONS = 10
RATE = 10.0
CLIENTS = 8
TOKENS = 300
LIMIT_S = 600
BODY = json.dumps(
    {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["text NUMBER"]}]}
).encode()
NEEDED_KINDS = ("Namespace", "PriorityClass", "ServiceAccount")

pytestmark = pytest.mark.timeout(3600)


@dataclass(kw_only=True)
class Site:
    """A cluster with the platform, and a person's folder."""

    lab: Lab
    builder: images.Builder
    server: str
    """The server's image, as builders on this host pull it."""
    kubeconfig: Path
    folder: Path
    machines: list[Machine] = field(default_factory=list)
    """The Spot machines, the oldest first."""
    boots: int = 0

    def run(self, *words: str) -> str:
        """Runs a command of the page in the folder, and returns all that it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *words],
            cwd=self.folder,
            env=os.environ | {"KUBECONFIG": str(self.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def push(self, name: str, dockerfile: str) -> str:
        """Builds the folder's image, which machines then have; returns it by digest."""
        text = re.sub(r"^FROM .*", f"FROM {self.server}", dockerfile, flags=re.MULTILINE)
        (self.folder / "Dockerfile").write_text(text)
        place = f"{EXAMPLE.registry}/{name}"
        digest = self.builder.folder_image(place.partition("/")[2], self.folder)
        image = f"{place}@{digest}"
        self.lab.pull(self.builder.registry.host, [image])
        return image

    def boot(self) -> None:
        for name, pool in (("system-a", "system"), ("serving-a", "serving")):
            self.lab.boot(name, EXAMPLE.pool(pool), gpu=pool == "serving")
        for _ in range(2):
            self.boot_spot()

    def boot_spot(self) -> None:
        self.boots += 1
        pool = EXAMPLE.pool(SPOT_POOL)
        self.machines.append(self.lab.boot(f"spot-{self.boots}", pool, gpu=True))

    def pods(self, name: str) -> list[Object]:
        """Returns the pods that are ready, stay, and have a machine."""
        pods: list[Object] = []
        for pod in self.lab.api.items(f"{SPACE}/pods", labelSelector=f"{LABEL_NAME}={name}"):
            is_ready = condition(pod, "Ready").get("status") == "True"
            is_here = pod["spec"].get("nodeName") in self.lab.machines
            if is_ready and is_here and "deletionTimestamp" not in pod["metadata"]:
                pods.append(pod)
        return pods

    def wait_ready(self, counts: dict[str, int]) -> None:
        def count() -> bool:
            return all(len(self.pods(name)) == number for name, number in counts.items())

        until(f"{counts} are ready", count, LIMIT_S)

    def preempt(self, name: str, counts: dict[str, int]) -> None:
        """Takes the oldest Spot machine, as Compute Engine does; another has come before.

        How its pod ended is judged in test_serving.py: on a busy host, the machine may be gone
        before its kubelet has written that.
        """
        machine = self.machines.pop(0)
        places = [pod["spec"]["nodeName"] for pod in self.pods(name)]
        assert machine.name in places
        self.boot_spot()
        assert self.lab.preempt(machine), "the kubelet gave its lock back within the window"
        self.wait_ready(counts)

    def stop(self, name: str) -> None:
        self.run("stop", name, "--yes")

        def is_gone() -> bool:
            for pod in self.lab.api.items(f"{SPACE}/pods"):
                if pod["metadata"]["name"].startswith(f"{name}-"):
                    return False
            return True

        until("its pods are gone", is_gone, LIMIT_S)


@pytest.fixture(scope="module")
def builder() -> Iterator[images.Builder]:
    missing = find_missing()
    absent = [name for name in images.COMMANDS if not shutil.which(name)]
    support.require(not missing, missing)
    support.require(not absent, f"`make test-node` installs {', '.join(absent)}")
    with serving(Registry(images.HOME / "registry")) as registry:
        yield images.Builder(registry)


@pytest.fixture
def site(builder: images.Builder, tmp_path: Path) -> Iterator[Site]:
    digests = builder.build(["server"])
    server = builder.find_image("server", digests["server"])
    place = EXAMPLE.registry.partition("/")[2]
    digests["envoy"] = builder.stranger(f"{place}/envoy:v1", envoy(), "/usr/local/bin/")
    hexes = {name: digest.removeprefix("sha256:") for name, digest in digests.items()}
    platform = replace(EXAMPLE, images=hexes)
    with ExitStack() as stack:
        lab = Lab()
        stack.callback(lab.close)
        references = [f"{EXAMPLE.registry}/{name}@{digest}" for name, digest in digests.items()]
        lab.pull(builder.registry.host, references)
        gke.install(lab.api)
        flex.define(lab.api, "PodMonitoring", "podmonitorings", "monitoring.googleapis.com")
        for body in rendering.platform(RenderContext(platform)):
            space = body["metadata"].get("namespace", NAMESPACE_SERVING)
            if body["kind"] in NEEDED_KINDS and space == NAMESPACE_SERVING:
                lab.api.apply(lab.api.path_of(body), body)
        platforms.publish(lab.api, platform)
        sizes.apply(lab.api, NAMESPACE_SERVING)
        stack.enter_context(service_addresses.serve_api_server(lab))
        stack.enter_context(names.served(lab))
        kubeconfig = lab.plane.kubeconfig("admin")
        yield Site(lab=lab, builder=builder, server=server, kubeconfig=kubeconfig, folder=tmp_path)


def read_block(beginning: str, image: str) -> list[list[str]]:
    """Returns the commands of the page's block that begins so, with this image."""
    commands = example_services.read_commands(beginning)
    for words in commands:
        if "--image" in words:
            words[words.index("--image") + 1] = image
    return commands


def read_code(page: Path, language: str, beginning: str) -> str:
    """Returns the code of a page's block that begins so."""
    pattern = rf"```{language}\n({beginning}\n.*?)```"
    (code,) = re.findall(pattern, page.read_text(), re.DOTALL)
    return code


def count_moved(pods: list[Object]) -> int:
    """Returns how often the routers in these pods moved a stream."""
    moved = 0.0
    for pod in pods:
        address = pod["status"]["podIP"]
        url = f"http://{address}:{PORT}/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            text = response.read().decode()
        for line in text.splitlines():
            if line.startswith(ROUTER_MOVED):
                _, _, value = line.rpartition(" ")
                moved += float(value)
    return int(moved)


def start(site: Site, written: list[str], sent: list[str], counts: dict[str, int]) -> None:
    site.run(*written)
    site.boot()
    assert "applied Deployment/" in site.run(*sent, "--yes")
    site.wait_ready(counts)


def ask(site: Site, name: str, address: str) -> str:
    """Sends the first request that `explain` prints; the name is resolved here."""
    explained = json.loads(site.run("explain", name, "--json"))
    host = f"{name}.{NAMESPACE_SERVING}.svc.cluster.local"
    words = [*shlex.split(explained["curl"]), "--resolve", f"{host}:{PORT}:{address}"]
    return support.ran(words).stdout


def see(site: Site, name: str, source: str) -> None:
    """Looks at the service with the page's other commands."""
    assert f"{name} in {NAMESPACE_SERVING} serves {source}" in site.run("explain", name)
    (line,) = re.findall(f"^{name} .*", site.run("list"), re.MULTILINE)
    assert line.split()[:2] == [name, source]
    assert f"{name}-overflow" in site.run("logs", name)


def test_own_predictor_answers_every_request_through_ten_preemptions(site: Site) -> None:
    (site.folder / "my_model.py").write_text(read_code(PREDICTOR_PAGE, "python", "# my_model.py"))
    image = site.push("upper", read_code(example_services.PAGE, "dockerfile", "# Dockerfile"))
    counts = {"upper-base": 1, "upper-overflow": 2, "upper-proxy": 2}
    written, sent = read_block("holdfast new-service upper", image)
    start(site, written, sent, counts)
    with service_addresses.serve(site.lab, NAMESPACE_SERVING, "upper") as (host, port):
        assert "HELLO" in ask(site, "upper", host)
        load = Load(host, port, "/v2/models/upper/infer", BODY)
        with load.asking(RATE):
            for _ in range(PREEMPTIONS):
                site.preempt("upper-overflow", counts)
        assert "HELLO" in ask(site, "upper", host)
    see(site, "upper", "my_model:make")
    print(f"{load.requests} requests: {dict(load.codes)}")
    assert load.failures == 0
    assert load.requests > PREEMPTIONS * RATE
    site.stop("upper")


def push_engine(site: Site) -> str:
    """Builds the image of the program `vllm` that is the small engine."""
    program = site.folder / "vllm"
    program.write_text("#!/opt/venv/bin/python\n" + (STRANGERS / "vllm.py").read_text())
    program.chmod(0o755)
    return site.push("small-vllm", "FROM server\nCOPY vllm /usr/local/bin/\n")


def test_text_streams_lose_no_token_through_ten_preemptions(site: Site) -> None:
    image = push_engine(site)
    counts = {"chat-base": 1, "chat-overflow": 2, "chat-router": 2, "chat-proxy": 2}
    written = [*read_block("holdfast new-service chat", image)[0], "--image", image]
    start(site, written, ["submit", "chat.yaml"], counts)
    with service_addresses.serve(site.lab, NAMESPACE_SERVING, "chat") as (host, port):
        assert "[DONE]" in ask(site, "chat", host)
        load = StreamLoad(clients=CLIENTS, tokens=TOKENS, host=host)
        with load.reading(port):
            for _ in range(PREEMPTIONS):
                site.preempt("chat-overflow", counts)
    see(site, "chat", "gs://my-bucket/llama-3-8b")
    moved = count_moved(site.pods("chat-router"))
    tokens = sum(result.tokens for result in load.results)
    print(f"{len(load.results)} streams of {tokens} tokens, moved {moved} times")
    assert not [result for result in load.results if not result.is_whole]
    assert len(load.results) > PREEMPTIONS
    assert moved >= PREEMPTIONS
    site.stop("chat")


def test_a_service_sleeps_until_it_is_asked(site: Site) -> None:
    """Types the page's commands, with the shortest idle time."""
    image = push_engine(site)
    counts = {"drafts-base": 1, "drafts-router": 2, "drafts-proxy": 2}
    written, sent, explained = read_block("holdfast new-service drafts", image)
    written[written.index("idle_minutes=20")] = "idle_minutes=5"
    start(site, [*written, "--image", image], sent, counts)
    with service_addresses.serve(site.lab, NAMESPACE_SERVING, "drafts") as (host, _):
        assert "[DONE]" in ask(site, "drafts", host)
        until("it sleeps", lambda: "drafts-base: asleep" in site.run(*explained), LIMIT_S)
        until("its server has ended", lambda: not site.pods("drafts-base"), LIMIT_S)
        assert "[DONE]" in ask(site, "drafts", host)
        site.wait_ready(counts)
    site.stop("drafts")
