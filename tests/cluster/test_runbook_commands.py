"""The commands of each alert's notification, run by bash against the real API server.

Cloud Monitoring's variables are replaced as it does when it sends. Commands of gcloud and make do
not reach a cluster; those that print logs need a kubelet, which a simulated node lacks.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clients.api import Api, ApiError
from holdfast.vocabulary.job_identity import LABEL_HOLDFAST_JOB
from holdfast.vocabulary.pools import Pool
from infra import environments
from infra.specs import outputs
from monitoring import stack
from monitoring.alerting import runbook
from monitoring.alerting.alerts import alerts
from tests import platforms, support
from tests.cluster.sim.manager import OwnManager
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.tools.build import TOOLS

pytestmark = [pytest.mark.usefixtures("kueue"), pytest.mark.timeout(400)]
JOB = "train-0a1b2c3d"
NAMESPACES = ("training", "batch", "serving", "monitoring")
SERVERS = ("server-base", "server-overflow")
ASKS_A_CLUSTER = re.compile(r"kubectl |holdfast (?:list|explain|stop)\b")
NEEDS_A_KUBELET = re.compile(r"kubectl (?:logs|exec)\b|--follow")
UNKNOWN_KINDS = re.compile(r"provisioningrequests\.autoscaling")


def list_commands(name: str) -> dict[str, list[str]]:
    """Returns alert -> the commands of its notification that ask a cluster."""
    environment = environments.load(name)
    words = stack.make_words(environment)
    commands = {}
    for alert in alerts(stack.make_limits(environment), environment.alerts.modules):
        text = runbook.documentation(alert, "", words, outputs.credentials(environment))
        commands[alert.slug] = [
            command
            for command in runbook.commands(text.content)
            if ASKS_A_CLUSTER.match(command) and not NEEDS_A_KUBELET.search(command)
        ]
    return commands


@pytest.fixture
def platform_objects(api: Api, world: World, spot: Pool) -> Iterator[None]:
    """A running job, servers that were rolled out once, and the platform's document."""
    for namespace in NAMESPACES:
        try:
            api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        except ApiError as error:
            assert error.status == 409, error
    platforms.publish(api, platforms.load("example"))
    template = world.pod_template(spot)
    template.setdefault("metadata", {}).setdefault("labels", {})[LABEL_HOLDFAST_JOB] = JOB
    body = {
        "metadata": {
            "name": JOB,
            "labels": {"app.kubernetes.io/name": JOB},
        },
        "spec": {"template": template, "backoffLimit": 100},
    }
    api.create(world.path("jobs", "/apis/batch/v1"), body)
    for server in SERVERS:
        create_server(api, server)
    lease = "/apis/coordination.k8s.io/v1/namespaces/monitoring/leases"
    if api.find(f"{lease}/holdfast-exporter") is None:
        api.create(lease, {"metadata": {"name": "holdfast-exporter"}, "spec": {}})
    yield
    for server in SERVERS:
        api.delete(f"/apis/apps/v1/namespaces/serving/deployments/{server}")
        api.delete(f"/apis/autoscaling/v2/namespaces/serving/horizontalpodautoscalers/{server}")
    api.delete("/api/v1/namespaces/monitoring/configmaps/holdfast-platform")


def create_server(api: Api, name: str) -> None:
    """Creates a Deployment of two revisions without pods, and its autoscaler."""
    labels = {"app": name}
    pod = {"containers": [{"name": "main", "image": "registry.example/server:1"}]}
    deployments = "/apis/apps/v1/namespaces/serving/deployments"
    template = {
        "metadata": {"labels": labels},
        "spec": pod,
    }
    spec = {
        "replicas": 0,
        "selector": {"matchLabels": labels},
        "template": template,
    }
    api.create(
        deployments,
        {
            "metadata": {"name": name},
            "spec": spec,
        },
    )
    revision = "deployment.kubernetes.io/revision"
    for number in ("1", "2"):
        until(
            f"revision {number} of {name}",
            lambda number=number: (
                api.get(f"{deployments}/{name}")["metadata"].get("annotations", {}).get(revision)
                == number
            ),
        )
        if number == "1":
            patch = {"spec": {"template": {"metadata": {"annotations": {"rolled": "out"}}}}}
            api.merge(f"{deployments}/{name}", patch)
    target = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": name,
    }
    api.create(
        "/apis/autoscaling/v2/namespaces/serving/horizontalpodautoscalers",
        {
            "metadata": {"name": name},
            "spec": {
                "scaleTargetRef": target,
                "minReplicas": 1,
                "maxReplicas": 9,
            },
        },
    )


@pytest.fixture
def shell(cluster: OwnManager, tmp_path: Path) -> dict[str, str]:
    """The environment of bash: kubectl of this cluster, and `holdfast`."""
    assert cluster.kubeconfig
    support.program(tmp_path / "kubectl", f'#!/bin/sh\nexec {TOOLS["kubectl"].binary} "$@"\n')
    support.program(tmp_path / "holdfast", f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    python_path = os.pathsep.join(path for path in sys.path if path)
    return {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "KUBECONFIG": str(cluster.kubeconfig),
        "HOME": str(tmp_path),
        "PYTHONPATH": python_path,
    }


def test_environments_send_the_same_commands_to_their_clusters() -> None:
    example = list_commands("example")
    assert sum(map(len, example.values())) > 40
    for name in environments.names():
        assert list_commands(name) == example


@pytest.mark.usefixtures("platform_objects")
def test_notifications_have_commands_that_run(
    api: Api,
    world: World,
    spot: Pool,
    shell: dict[str, str],
    tmp_path: Path,
) -> None:
    node, lost_node = world.add_nodes(spot, 2)
    until("the job's pod runs", lambda: world.pods("Running"))
    labels = {
        "namespace": world.name,
        "namespace_name": world.name,
        "job": JOB,
        "Hostname": node,
        "node_pool_name": spot.name,
        "accelerator": spot.accelerator,
    }
    failures = []
    for slug, commands in list_commands("example").items():
        undo(api, world, node)
        labels["pod_name"] = world.pods("Running")[0]["metadata"]["name"]
        for command in commands:
            if UNKNOWN_KINDS.search(command):
                continue
            line = fill_in(command, labels, lost_node)
            done = subprocess.run(
                ["bash", "-uc", line],
                env=shell,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            if done.returncode:
                failures.append(f"{slug}: {line}: {done.stderr[-300:]}")
        if any(command.startswith("kubectl cordon") for command in commands):
            assert is_cordoned(api, node) or is_cordoned(api, lost_node)
        if any(command.startswith("holdfast stop") for command in commands):
            assert world.job(JOB)["spec"]["suspend"] is True
    assert not failures, "\n".join(failures)


def is_cordoned(api: Api, node: str) -> bool:
    return bool(api.get(f"/api/v1/nodes/{node}")["spec"].get("unschedulable"))


def undo(api: Api, world: World, node: str) -> None:
    """Makes the job run again, as before the commands of the alert before."""
    api.merge(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})
    jobs = world.path("jobs", "/apis/batch/v1")
    api.merge(f"{jobs}/{JOB}", {"spec": {"suspend": False}})
    until("the job's pod runs", lambda: world.pods("Running"))


def fill_in(command: str, labels: dict[str, str], node: str) -> str:
    """Returns a command as a person pastes it; NODE is what its first command shows."""
    for label, value in labels.items():
        command = command.replace(f"${{metric.label.{label}}}", value)
    assert "${metric" not in command, command
    return re.sub(r"\bNODE\b", node, command)
