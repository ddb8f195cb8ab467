"""Pods of a service with a model: vLLM, its drain sidecar and the router, by rendered commands.

All that differs from a cluster is here: OPTIONS and VARIABLES for processors, a model of random
weights in a folder, and ports of this machine, since its pods share one address.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.clients.api import Object
from holdfast.drill.serving.fleet import free_port
from holdfast.inference.proxy.endpoints import Endpoint, discovery, write
from holdfast.manifests.envoy import CLUSTER
from holdfast.vocabulary.serving import HOOK_PORT, PORT, SIDECAR_PORT
from tests.workloads.manifests.rendered import option
from workloads.library.tests.inference.router.fleet import HOST, count_ready
from workloads.library.tests.inference.server.serving import ROOT, Client
from workloads.library.tests.processes import until
from workloads.library.tests.services import example_services

OPTIONS = (
    # The streamer of weights reads a bucket.
    "--load-format",
    "auto",
    # With fewer bits the arithmetic of another batch may choose another token.
    "--dtype",
    "float32",
    # Compiling takes minutes of two cores.
    "--enforce-eager",
)
"""Options of the service file, after the rendered ones, which they replace."""
VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Two servers and their clients share the cores.
    "OMP_NUM_THREADS": "1",
}
LOAD_S = 1200.0
PROGRAM = "holdfast"
SERVICE = replace(example_services.read("chat"), options=OPTIONS)


@cache
def render() -> list[Object]:
    return example_services.render(SERVICE)


def find_pod(name: str) -> Object:
    return example_services.find(render(), "Deployment", name)["spec"]["template"]["spec"]


def find_container(spec: Object, name: str) -> Object:
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    return next(container for container in containers if container["name"] == name)


def read_variables(container: Object, folder: Path) -> dict[str, str]:
    """Returns the container's variables, with this machine's paths and a home of its own."""
    variables = {entry["name"]: entry["value"] for entry in container.get("env", ())}
    own_values = {"HOME": str(folder), "HOLDFAST_RUN_DIR": str(folder), "PATH": os.environ["PATH"]}
    return variables | own_values


@dataclass(kw_only=True)
class Process:
    """A process with its own group, which ends as a container does: with all its children."""

    command: list[str]
    variables: Mapping[str, str]
    log: Path
    child: "subprocess.Popen[bytes]" = field(init=False)

    def __post_init__(self) -> None:
        with self.log.open("ab") as out:
            self.child = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=self.variables,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()

    def terminate(self) -> None:
        """Signals only the first process, as the kubelet does."""
        self.child.terminate()

    def is_alive(self) -> bool:
        return self.child.poll() is None


@dataclass(kw_only=True)
class Pod:
    """vLLM and its sidecar, with the ports that stand for those of a pod's address."""

    spec: Object
    folder: Path
    home: Path
    model: Path
    options: tuple[str, ...] = ()
    """Further options of vLLM."""
    ports: dict[int, int] = field(default_factory=dict)
    """Port of this machine by the pod's port."""
    loading_status: int = 0
    """Status of the readiness probe while vLLM loaded."""

    def __post_init__(self) -> None:
        self.ports = {port: free_port() for port in (PORT, SIDECAR_PORT, HOOK_PORT)}
        self.client = Client(self.ports[PORT])

    def start(self, stack: ExitStack) -> None:
        """Starts both containers, which end with `stack`, also if one does not start."""
        self.engine = self._start_engine()
        stack.callback(self.engine.kill)
        self.sidecar = self.start_sidecar()
        stack.callback(lambda: self.sidecar.kill())  # the one that runs then
        self.loading_status = until(lambda: self.probe("readinessProbe"), "the sidecar")

    def _start_engine(self) -> Process:
        container = find_container(self.spec, "main")
        program, *words = container["command"]
        assert program == "vllm"
        assert option(words, "--port") == str(PORT)
        words[words.index(SERVICE.model)] = str(self.model)
        words[words.index("--port") + 1] = str(self.ports[PORT])
        words[words.index("--host") + 1] = HOST
        return Process(
            command=[str(self.home / "bin" / program), *words, *self.options],
            variables=read_variables(container, self.folder) | VARIABLES,
            log=self.folder / "engine.log",
        )

    def start_sidecar(self) -> Process:
        container = find_container(self.spec, "drain")
        words = list(container["command"])
        health = option(words, "--health")
        words[words.index("--health") + 1] = health.replace(f":{PORT}/", f":{self.ports[PORT]}/")
        words += ["--port", str(self.ports[SIDECAR_PORT])]
        words += ["--hook-port", str(self.ports[HOOK_PORT])]
        return Process(
            command=[sys.executable, *words[1:]],
            variables=read_variables(container, self.folder),
            log=self.folder / "sidecar.log",
        )

    def restart_sidecar(self) -> None:
        """Takes back a drain, which in a cluster has no way back."""
        self.sidecar.kill()
        self.sidecar = self.start_sidecar()
        until(lambda: self.probe("readinessProbe") == 200, "a ready pod")

    def probe(self, name: str) -> int:
        """Returns the status that the kubelet gets; 0 if nothing answers."""
        return self.get(find_container(self.spec, "main")[name]["httpGet"])

    def call_hook(self) -> int:
        return self.get(find_container(self.spec, "main")["lifecycle"]["preStop"]["httpGet"])

    def get(self, action: Mapping[str, Any]) -> int:
        try:
            return Client(self.ports[action["port"]]).request("GET", action["path"]).status
        except OSError:
            return 0

    def wait_until_ready(self) -> None:
        until(
            lambda: self.probe("startupProbe") == 200,
            lambda: (self.folder / "engine.log").read_text()[-4000:],
            alive=self.engine.is_alive,
            within_s=LOAD_S,
            pause_s=1.0,
        )
        until(lambda: self.probe("readinessProbe") == 200, "a ready pod")

    def kill(self) -> None:
        """Ends both containers at once, as the loss of a machine does."""
        self.engine.kill()
        self.sidecar.kill()


@contextmanager
def running_pods(
    folder: Path,
    home: Path,
    model: Path,
    *,
    count: int = 2,
    options: tuple[str, ...] = (),
) -> Generator[list[Pod]]:
    """Runs a replica on demand and others on Spot; they load at the same time."""
    with ExitStack() as stack:
        pods: list[Pod] = []
        for number in range(count):
            name = "chat-overflow" if number else "chat-base"
            own_folder = folder / f"{name}-{number}"
            own_folder.mkdir()
            pod = Pod(
                spec=find_pod(name),
                folder=own_folder,
                home=home,
                model=model,
                options=options,
            )
            pod.start(stack)
            pods.append(pod)
        for pod in pods:
            pod.wait_until_ready()
        yield pods


@contextmanager
def running_router(
    folder: Path,
    pods: list[Pod],
    program: str = PROGRAM,
) -> Generator[Client]:
    """Runs the router of the service in front of `pods`.

    Their ports differ, so a file names them instead of the headless Service. `program` is the
    module of its command.
    """
    entries: list[Object] = []
    for pod in pods:
        endpoint = Endpoint(address=HOST, port=pod.ports[PORT])
        response = discovery(CLUSTER, [endpoint], pod.ports[SIDECAR_PORT])
        entries += response["resources"][0]["endpoints"]
    response = discovery(CLUSTER, [])
    response["resources"][0]["endpoints"] = entries
    file = folder / "servers.json"
    write(file, response)
    container = find_container(find_pod("chat-router"), "main")
    words = list(container["command"])
    assert option(words, "--health-port") == str(SIDECAR_PORT)
    words[words.index(PROGRAM)] = program
    client = Client(free_port())
    place = words.index("--servers")
    words[place : place + 2] = ["--endpoints-file", str(file)]
    words[words.index("--port") + 1] = str(client.port)
    words[words.index("--health-port") + 1] = "0"
    process = Process(
        command=[sys.executable, *words[1:]],
        variables=read_variables(container, folder),
        log=folder / "router.log",
    )
    try:
        until(lambda: _count_servers(client) == len(pods), "every pod is ready for the router")
        yield client
    finally:
        process.kill()


def _count_servers(client: Client) -> int:
    try:
        return count_ready(client)
    except OSError:
        return -1
