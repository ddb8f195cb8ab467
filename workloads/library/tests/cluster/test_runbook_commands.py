"""Every kubectl command of the runbook, in the state that its alert means: none may answer with
nothing.

The cluster is the real control plane with the platform and jobs as they are rendered; the shell
variables are the labels that the notification carries.
"""

import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from kubernetes import client
from pytest_kubernetes.providers.base import AClusterManager

from holdfast.clients.api import Api, Object
from holdfast.controllers.lease import Lease
from holdfast.cost.receipt import ANNOTATION
from holdfast.vocabulary.lifecycle import ANNOTATION_TERMINATION
from holdfast.vocabulary.roles import NAMESPACE_MONITORING, NAMESPACE_SERVING
from monitoring.alerting import runbook
from tests.cluster.sim import nodes
from tests.cluster.sim.manager import HostManager
from tests.cluster.sim.pods import if_there
from tests.cluster.sim.stages import GOING
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.platforms import load
from tests.tools.build import TOOLS
from tests.workloads.manifests import rendered
from workloads.library.tests.cluster.cast import (
    FLEX,
    REQUESTS,
    SPOT,
    SYSTEM,
    Submitted,
    load_resized,
)
from workloads.library.tests.cluster.objects import list_nodes
from workloads.library.tests.training.hooks import before_import

pytestmark = pytest.mark.usefixtures("kueue")
SERVERS = f"/api/v1/namespaces/{NAMESPACE_SERVING}"
# Sections whose alert is about a batch, and sections about a namespace other than the job's.
OF_BATCH = {"backlog-past-deadline", "dead-letters", "results-database-errors"}
NAMESPACES = {
    "system-pods-on-spot": "kube-system",
    "disruption-budget-violated": NAMESPACE_MONITORING,
    "silent-node-holds-pods": "training",
}
# Sections about services with a model: the platform renders no such service by itself.
OF_ROUTERS = {"serving-streams-end", "serving-streams-move-slowly"}
COLUMNS = re.compile(r"^kubectl get (?!.*-o (yaml|jsonpath|name))")
# A simulated pod runs no command, so only the query that finds the pod is run.
IN_POD = re.compile(r'^kubectl exec .*"\$\((.*)\)" -c main -- ')
ACTS = ("kubectl ", "holdfast stop ", "holdfast resume ")
STOP = "holdfast.job_commands.control.stopping"
SHORT_WAIT = """
from holdfast.job_commands.control.pod_logs import Streams
wait = Streams.wait_for_ends
Streams.wait_for_ends = lambda streams, _: wait(streams, 0.5)
"""
"""Simulated nodes end no followed log, and each `stop` would wait 10 s for it."""
EXAMPLE = load("example")
L4 = EXAMPLE.pool("spot-l4-g2-standard-8")
SERVING = EXAMPLE.pool("serving")


@pytest.fixture
def jobs(
    world: World,
    api: Api,
    cluster: AClusterManager,
    exporter: client.ApiClient,
) -> Generator[dict[str, Submitted]]:
    """A cluster in which the trouble of every alert is there at once."""
    if not isinstance(cluster, HostManager):
        pytest.skip("logs of simulated pods need a control plane of our own")
    services = [rendered.find_object("example", "Deployment", "batch-steady"), *online()]
    for service in services:
        api.apply(api.path_of(service), service)
    # One machine for a base of two: a request waits, and a pod does.
    for pool, count in ((SYSTEM, 1), (SPOT, 5), (L4, 6), (SERVING, 1)):
        world.add_nodes(pool, count, labels={})
    wanted = {
        "train-gang": ("JobSet", 4),
        "batch-drain": ("Job", 1),
        "train-flex-tesla-a100": ("Job", 2),
        "train-queued-tesla-a100": ("JobSet", 2),
    }
    made: dict[str, Submitted] = {}
    for name, (kind, pods) in wanted.items():
        made[name] = Submitted(api, load_resized(kind, name, pods))
    try:
        for job in made.values():
            job.submit()
        trouble(world, api, exporter, made)
        yield made
    finally:
        for job in made.values():
            job.cancel()
        for service in services:
            api.delete(api.path_of(service), propagationPolicy="Background")
        with if_there():
            api.delete("/api/v1/namespaces/kube-system/pods/dns-on-spot")


def online() -> list[Object]:
    """The servers with their autoscalers, and the Service before them."""
    titles = (
        ("Deployment", "server-base"),
        ("Deployment", "server-overflow"),
        ("HorizontalPodAutoscaler", "server-base"),
        ("HorizontalPodAutoscaler", "server-overflow"),
        ("Service", "server"),
    )
    return [rendered.find_object("example", kind, name, "serving") for kind, name in titles]


def trouble(
    world: World,
    api: Api,
    exporter: client.ApiClient,
    jobs: dict[str, Submitted],
) -> None:
    gang = jobs["train-gang"]
    busy = list_nodes(gang.wait("Running", 4))
    jobs["batch-drain"].wait("Running", 1)
    jobs["train-flex-tesla-a100"].wait("Pending", 2)
    until("Kueue asks for nodes", lambda: list(api.items(REQUESTS)))
    api.merge(api.path_of(gang.doc), {"metadata": {"annotations": {ANNOTATION: "{}"}}})
    assert Lease(Api.over(exporter), NAMESPACE_MONITORING).acquire()
    (ending,) = world.add_nodes(FLEX, 1)
    ends = {"metadata": {"annotations": {ANNOTATION_TERMINATION: "2027-01-01T00:00:00Z"}}}
    api.merge(f"{nodes.NODES}/{ending}", ends)
    dns = world.pod_template(
        L4, nodeSelector=L4.selector(), containers=[{"name": "main", "image": "none"}]
    )
    api.create("/api/v1/namespaces/kube-system/pods", dns | {"metadata": {"name": "dns-on-spot"}})
    free_nodes = [name for name in world.nodes if SPOT.name in name and name not in busy]
    gone = free_nodes[0]
    api.merge(f"{nodes.NODES}/{gone}", {"metadata": {"labels": {GOING: "true"}}})
    # A real node's kubelet records this event, and here is none.
    event = {
        "metadata": {"name": gone},
        "involvedObject": {"kind": "Node", "name": gone},
        "reason": "NodeNotReady",
    }
    api.create("/api/v1/namespaces/default/events", event)
    refused = "reason=FailedScheduling"
    waiting = {"fieldSelector": "status.phase=Pending"}
    until(
        "the autoscaler asks for a server more than fits",
        lambda: list(api.items(f"{SERVERS}/pods", **waiting)),
    )
    until(
        "the scheduler gives its reason",
        lambda: list(api.items("/api/v1/events", fieldSelector=refused)),
    )


def variables(slug: str, jobs: dict[str, Submitted]) -> dict[str, str]:
    """Returns the shell variables, as the notification carries them."""
    gang = jobs["train-gang"]
    drain = jobs["batch-drain"]
    pod = gang.pods("Running")[0]
    job = drain if slug in OF_BATCH else gang
    return {
        "JOB": job.name,
        "POOL": SPOT.name,
        "ACCELERATOR": SPOT.accelerator,
        "NAMESPACE": NAMESPACES.get(slug, job.doc["metadata"]["namespace"]),
        "HOSTNAME": pod["spec"]["nodeName"],
        "NAMESPACE_NAME": pod["metadata"]["namespace"],
        "POD_NAME": pod["metadata"]["name"],
    }


def test_every_runbook_command_prints_something(
    api: Api,
    jobs: dict[str, Submitted],
    cluster: AClusterManager,
    tmp_path: Path,
) -> None:
    silent: list[str] = []
    asked = 0
    for slug, body in runbook.sections().items():
        if slug in OF_ROUTERS:
            continue
        # Commands of the mitigation act, and would remove what the next sections look at.
        looks = body.partition("**Mitigation.**")[0]
        values = variables(slug, jobs)
        for command in runbook.commands(looks):
            if not command.startswith("kubectl "):
                continue
            inside = IN_POD.match(command)
            command = inside[1] if inside else command
            done = run(command, values, cluster)
            asked += 1
            if done.returncode or not answers(command, done.stdout):
                silent.append(describe(slug, command, done))
    assert asked > 35
    assert not silent, "\n".join(silent)
    play_mitigations(
        api,
        jobs,
        cluster,
        before_import(tmp_path / "site", STOP, SHORT_WAIT),
    )


def run(
    command: str,
    values: dict[str, str],
    cluster: AClusterManager,
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | values | {"KUBECONFIG": str(cluster.kubeconfig)}
    folders = (TOOLS["kubectl"].binary.parent, Path(sys.executable).parent, os.environ["PATH"])
    environment["PATH"] = ":".join(map(str, folders))
    return subprocess.run(
        ["bash", "-c", command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def describe(slug: str, command: str, done: subprocess.CompletedProcess[str]) -> str:
    printed = f"{done.stdout[:300]} {done.stderr[:600]}"
    return f"{slug}: {command}\n  {done.returncode}: {printed}"


def play_mitigations(
    api: Api,
    jobs: dict[str, Submitted],
    cluster: AClusterManager,
    environment: dict[str, str],
) -> None:
    """Runs each command that acts, and undoes it as its section says, before the next section.

    What several sections share is run once.
    """
    gang = jobs["train-gang"]
    (node_body,) = api.items(nodes.NODES, labelSelector=GOING)
    silent_node = node_body["metadata"]["name"]
    failures: list[str] = []
    played: set[tuple[str, str]] = set()
    # An undo needs an earlier version.
    for name in ("server-base", "server-overflow"):
        template = {"metadata": {"annotations": {"version": "2"}}}
        path = f"/apis/apps/v1/namespaces/{NAMESPACE_SERVING}/deployments/{name}"
        api.merge(path, {"spec": {"template": template}})
    for slug, body in runbook.sections().items():
        commands = runbook.commands(body.partition("**Mitigation.**")[2])
        if slug in OF_ROUTERS or not any(command.startswith(ACTS) for command in commands):
            continue
        gang.wait("Running", 4)
        values = variables(slug, jobs) | environment
        for command in commands:
            if not command.startswith(ACTS) or (command, values["JOB"]) in played:
                continue
            played.add((command, values["JOB"]))
            node = silent_node if command == "kubectl delete node NODE" else values["HOSTNAME"]
            if "xargs" not in command:
                command = command.replace(" NODE", f" {node}")
            done = run(command, values, cluster)
            printed = (done.stdout + done.stderr).replace("No resources found", "")
            if done.returncode or not printed.strip():
                failures.append(describe(slug, command, done))
            if command.startswith("kubectl drain"):
                run(f"kubectl uncordon {node}", values, cluster)
            if command.startswith("holdfast stop") and command == commands[-1]:
                run('holdfast resume "$JOB" --namespace "$NAMESPACE"', values, cluster)
    assert not failures, "\n".join(failures)
    assert len(played) > 12


def answers(command: str, output: str) -> bool:
    if not COLUMNS.match(command):
        return bool(output.strip())
    _, *rows = [line.split() for line in output.splitlines() if line.strip()] or [[]]
    named = "custom-columns" in command
    return bool(rows) and (
        not named or all({*column} != {"<none>"} for column in zip(*rows, strict=False))
    )
