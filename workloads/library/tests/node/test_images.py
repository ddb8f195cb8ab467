"""Trainer, batch worker, exporter and server as rendered, from images that our Dockerfiles made, on
real kubelets.
"""

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.job_snapshot import disruption, when
from holdfast.vocabulary import serving
from holdfast.vocabulary.environment import ENV_DATABASE
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.kubernetes import LABEL_NAME
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW
from holdfast.vocabulary.pools import Pool
from holdfast.vocabulary.roles import NAMESPACE_SERVING
from tests import platforms
from tests.cluster.sim.batch import batch, database
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.tools.build import TOOLS
from workloads.library.tests.node.lab import as_rendered, google, seen
from workloads.library.tests.node.lab.as_rendered import SIZE
from workloads.library.tests.node.lab.images import Rendered
from workloads.library.tests.node.lab.lab import Lab, Machine
from workloads.library.tests.node.lab.seen import exit_code

STEPS = 60
EVERY = 10
ITEMS = 20_000
LIMIT_S = 420
BACKLOG = "holdfast_batch_backlog_items"
USER = 65_532
FILTERED = 2
GIB = 1 << 30

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture
def bucket(lab: Lab) -> Iterator[dict[str, str]]:
    """Environment of pods that reach the environment's checkpoints bucket."""
    with google.bucket(lab, platforms.load("example").buckets["checkpoints"]) as storage:
        yield {"STORAGE_EMULATOR_HOST": storage.url, "OMP_NUM_THREADS": "1"}


def account(world: World, name: str) -> None:
    world.api.create(world.path("serviceaccounts"), {"metadata": {"name": name}})


def assert_confined(process: dict[str, object], command: list[str]) -> None:
    """Checks with the kernel's own view that a process is confined as the manifest asks."""
    assert process == {
        "command": command,
        "user": USER,
        "group": USER,
        "seccomp": FILTERED,
        "no_new_privileges": True,
        "capabilities": 0,
        "root_read_only": True,
        "memory_limit": int(SIZE["memory"][0]) * GIB,
    }


def test_the_trainer_is_preempted_and_resumes_from_its_image(
    lab: Lab,
    world: World,
    spot: Pool,
    rendered: Rendered,
    folder: Path,
    bucket: dict[str, str],
) -> None:
    (folder / "text.txt").write_text("a spot machine may be taken away at any time. " * 2_000)
    rendered.apply(lab.api, "PriorityClass")
    lab.pull(rendered.registry.host, rendered.images("trainer"))
    account(world, "trainer")
    options = {
        "--device": "cpu",
        "--steps": str(STEPS),
        "--every": str(EVERY),
    }
    here = as_rendered.Lab(data=folder, env=bucket, options=options)
    doc = as_rendered.job(rendered.find("Job", "train-sweep"), world.name, here, 1)
    name = doc["metadata"]["name"]
    first = lab.boot("spot-a", spot)
    world.api.create(world.path("jobs", "/apis/batch/v1"), doc, fieldValidation="Strict")
    (pod,) = world.wait_running(1, LIMIT_S)
    until("a first checkpoint is committed", lambda: seen.events(first, pod, "commit"), LIMIT_S)
    command = [*doc["spec"]["template"]["spec"]["containers"][0]["command"]]
    command[command.index("--run") + 1] = "train-sweep-0"
    assert_confined(seen.process(name), command)
    noticed = time.time()
    status = seen.preempted(lab, first, pod)
    terminated = status["status"]["containerStatuses"][0]["state"]["terminated"]
    assert when(terminated["finishedAt"]) - noticed <= DEFAULT_WINDOW.pod_s
    committed = max(event["step"] for event in seen.events(first, pod, "commit"))
    assert 0 <= seen.events(first, pod, "exit")[-1]["step"] - committed <= EVERY, (
        "at most one interval is lost"
    )

    second = lab.boot("spot-b", spot)
    (fresh,) = world.wait_running(1, LIMIT_S)
    assert world.wait_condition(name, LIMIT_S) == "Complete"
    assert seen.events(second, fresh, "restore")[-1]["step"] == committed
    assert seen.events(second, fresh, "exit")[-1]["step"] == STEPS
    assert not world.job(name)["status"].get("failedIndexes")


def test_items_are_stored_once_through_a_shutdown_and_a_drain(
    lab: Lab,
    world: World,
    spot_l4: Pool,
    rendered: Rendered,
    folder: Path,
) -> None:
    """With a real database, the load Job fills the queue and workers that are evicted empty it."""
    rendered.apply(lab.api, "PriorityClass")
    lab.pull(rendered.registry.host, rendered.images("batch", "exporter"))
    source = folder / "data"
    source.mkdir()
    for n in range(ITEMS):  # each file of a folder is an item
        (source / f"{n}.txt").write_text(f"document {n}")
    lab.boot("system-a", platforms.load("example").pool("system"))
    lab.boot("any-a", platforms.load("example").pool("system"), tainted=False)
    account(world, "batch")
    with database(folder / "db") as uri, google.database(lab.bridge.address, uri) as url:
        here = as_rendered.Lab(data=source, env={ENV_DATABASE: url})
        load = as_rendered.job(rendered.find("Job", "batch-load"), world.name, here, 1)
        world.api.create(world.path("jobs", "/apis/batch/v1"), load, fieldValidation="Strict")
        assert world.wait_condition(load["metadata"]["name"], LIMIT_S) == "Complete"
        assert batch("status", "batch-drain", "--database", uri)["waiting"] == ITEMS
        port = exporter(lab, rendered, url)
        until(
            "the exporter shows the backlog", lambda: read_metric(port, BACKLOG) == ITEMS, LIMIT_S
        )
        options = {"--predictor": "entropy", "--set": "micro_batch=8"}
        worker = as_rendered.Lab(env={ENV_DATABASE: url}, options=options)
        drain = as_rendered.job(rendered.find("Job", "batch-drain"), world.name, worker, 1)
        machines = {name: lab.boot(name, spot_l4) for name in ("spot-a", "spot-b", "spot-c")}
        world.api.create(world.path("jobs", "/apis/batch/v1"), drain, fieldValidation="Strict")
        for take in (seen.preempted, drain_node):
            (pod,) = world.wait_running(1, LIMIT_S)
            machine = machines[pod["spec"]["nodeName"]]
            until("it stores items", lambda of=(machine, pod): seen.events(*of, "stored"), LIMIT_S)
            take(lab, machine, pod)
            assert batch("status", "batch-drain", "--database", uri)["waiting"], (
                "it was taken away in the middle"
            )
        name = drain["metadata"]["name"]
        assert world.wait_condition(name, LIMIT_S) == "Complete"
        assert not world.job(name)["status"].get("failedIndexes")
        status = batch("status", "batch-drain", "--database", uri)
        assert status["done"] == ITEMS
        assert status["failed"] == 0
        assert status["waiting"] == 0
        until("the exporter shows none", lambda: read_metric(port, BACKLOG) == 0, LIMIT_S)


def drain_node(lab: Lab, machine: Machine, pod: Object) -> None:
    """Drains the node of a pod, and checks how the pod ended while `kubectl drain` runs: it ends
    when the pods are gone.
    """
    kubectl = [
        TOOLS["kubectl"].binary,
        "--kubeconfig",
        lab.plane.kubeconfig("admin"),
        "drain",
        machine.name,
    ]
    options = ["--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={LIMIT_S}s"]
    with subprocess.Popen([*map(str, kubectl), *options]) as command:
        ended = seen.wait_until_ended(lab.api, pod, LIMIT_S)
        assert command.wait(LIMIT_S) == 0
    assert disruption(ended) == "EvictionByEvictionAPI"
    assert exit_code(ended) == EXIT_PREEMPTED


def test_server_answers_from_its_image_and_drains_with_its_machine(
    lab: Lab, world: World, spot_l4: Pool, rendered: Rendered
) -> None:
    """Ready by the kubelet's own probe, asked as a client asks, gone with 143 when its Spot machine
    is taken.
    """
    rendered.apply(lab.api, "PriorityClass", "ServiceAccount")
    lab.pull(rendered.registry.host, rendered.images("server"))
    here = as_rendered.Lab(options={"--predictor": "entropy"})
    doc = as_rendered.deployment(rendered.find("Deployment", "server-overflow"), here)
    machine = lab.boot("spot-a", spot_l4)
    path = lab.api.path_of(doc)
    lab.api.apply(path, doc, fieldManager="node-tier")
    until(
        "the server is ready",
        lambda: lab.api.get(path)["status"].get("readyReplicas") == 1,
        LIMIT_S,
    )
    assert_confined(
        seen.process("server-overflow"), doc["spec"]["template"]["spec"]["containers"][0]["command"]
    )
    asked = {
        "inputs": [
            {
                "name": "text",
                "datatype": "BYTES",
                "shape": [2],
                "data": ["aaaa", "a spot machine"],
            }
        ]
    }
    answer = post_json(f"http://127.0.0.1:{serving.PORT}/v2/models/model/infer", asked)
    assert len(answer["outputs"][0]["data"]) == 2, answer
    (pod,) = lab.api.items(
        f"/api/v1/namespaces/{NAMESPACE_SERVING}/pods",
        labelSelector=f"{LABEL_NAME}=server-overflow",
    )
    seen.preempted(lab, machine, pod)
    lab.api.delete(path, propagationPolicy="Foreground")


def post_json(url: str, body: Object) -> Object:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def exporter(lab: Lab, rendered: Rendered, url: str) -> int:
    """Starts the exporter under its own account and rights, without Google. Returns its port, once
    the kubelet's probe finds it ready.
    """
    rendered.apply(
        lab.api, "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"
    )
    env = {
        ENV_DATABASE: url,
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(lab.plane.port),
    }
    here = as_rendered.Lab(env=env, options={"--project": ""})
    doc = as_rendered.deployment(rendered.find("Deployment", "exporter"), here)
    lab.api.apply(lab.api.path_of(doc), doc, fieldManager="node-tier")
    path = lab.api.path_of(doc)
    until(
        "the exporter is ready",
        lambda: lab.api.get(path)["status"].get("readyReplicas") == 1,
        LIMIT_S,
    )
    (container,) = doc["spec"]["template"]["spec"]["containers"]
    return int(container["ports"][0]["containerPort"])


def read_metric(port: int, metric: str) -> float | None:
    """Returns the one value of a metric, as Prometheus reads it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    values = []
    for line in lines:
        if line.startswith(f"{metric}{{"):
            values.append(line.rpartition(" ")[2])
    return float(values[0]) if len(values) == 1 else None
