"""Drills on the real control plane, by the command as a user runs it, and with whole nodes
preempted.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pytest_kubernetes.providers.base import AClusterManager

from holdfast.clients.api import Api, Object
from holdfast.drill.catalogue import find
from holdfast.drill.plan import Drill
from holdfast.drill.runner import DrillRun
from holdfast.drill.target import Target, Undo
from holdfast.drill.targets.cluster import Cluster, Named
from holdfast.drill.targets.evictors import TAINT, NodeEvictor, TaintEvictor
from holdfast.drill.verdict import Verdict
from holdfast.vocabulary.pools import Pool
from tests import platforms
from tests.cluster.sim.nodes import NODES
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.library.tests.drill.by_hand import no_log

JOB = "train"
PODS = 6
SPARE = 3
QUIET = partial(DrillRun, log=no_log)


@dataclass
class RigEvictor:
    description: str
    how: Callable[[list[str]], object]
    evicted: list[str] = field(default_factory=list)

    def check(self, node: Object) -> str:
        return ""

    def evict(self, nodes: Sequence[str]) -> str:
        self.how(list(nodes))
        self.evicted += nodes
        return f"{self.description} {len(nodes)} of them"

    def rollback(self) -> Iterable[Undo]:
        return ()


def target(api: Api, world: World, drill: Drill, evictor: NodeEvictor) -> Target:
    named = Named(namespace=world.name, selector=f"batch.kubernetes.io/job-name={JOB}")
    return Cluster(api, named, drill.fault, evictor)


@pytest.fixture
def work(world: World, spot: Pool) -> World:
    """A Job on Spot nodes, with room for what is lost."""
    world.add_nodes(spot, PODS + SPARE)
    world.create_job(JOB, world.job_spec(spot, PODS))
    world.wait_running(PODS)
    return world


def make_command(
    world: World,
    drill: str,
    target: str,
    kubeconfig: object,
    context: str,
    out: Path,
) -> list[str]:
    named = ["--target", target, "--context", context, "--namespace", world.name]
    named += [
        "--selector",
        f"batch.kubernetes.io/job-name={JOB}",
        "--kubeconfig",
        str(kubeconfig),
        "--out",
        str(out),
    ]
    return [
        sys.executable,
        "-m",
        "holdfast",
        "drill",
        drill,
        *named,
        "--yes",
        "--json",
    ]


def context(cluster: AClusterManager) -> str:
    from kubernetes import config

    contexts: Any = config.list_kube_config_contexts(str(cluster.kubeconfig))
    return contexts[1]["name"]


def list_tainted_nodes(world: World) -> list[str]:
    nodes = []
    for node in world.api.items(NODES):
        if node["metadata"]["name"] in world.nodes:
            nodes.append(node)
    tainted_nodes: list[str] = []
    for n in nodes:
        for taint in n["spec"].get("taints", ()):
            if taint["key"] == TAINT:
                tainted_nodes.append(n["metadata"]["name"])
                break
    return tainted_nodes


def test_a_lone_node_is_taken_by_the_api_alone_and_given_back(
    cluster: AClusterManager, work: World, tmp_path: Path
) -> None:
    command = make_command(
        work, "cluster-lone-node", "cluster", cluster.kubeconfig, context(cluster), tmp_path
    )
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    (journal,) = json.loads(done.stdout)["drills"]
    assert done.returncode == 0, journal
    assert journal["verdict"] == "held", journal
    assert journal["objectives"], journal
    for objective in journal["objectives"]:
        assert objective["verdict"] == "held", journal
    (step,) = journal["rollbacks"]
    assert step["name"].split()[0] == "open"
    assert not list_tainted_nodes(work)
    assert len(work.nodes) == PODS + SPARE


def test_a_storm_hits_thirty_percent_and_the_job_pays_nothing(work: World) -> None:
    evictor = RigEvictor("notice and end of", work.preempt)
    drill = find("cluster-storm")
    record = QUIET(drill, target(work.api, work, drill, evictor)).run()
    verdicts = {result.verdict for result in record.results}
    assert verdicts == {Verdict.HELD}, record.why
    assert len(evictor.evicted) == PODS * 30 // 100


def test_a_job_that_pays_for_evictions_is_found_out(world: World, spot: Pool) -> None:
    world.add_nodes(spot, PODS + SPARE)
    spec = world.job_spec(spot, PODS, backoffLimit=100)
    del spec["podFailurePolicy"], spec["backoffLimitPerIndex"]
    world.create_job(JOB, spec)
    world.wait_running(PODS)
    drill = find("cluster-lone-node")
    record = QUIET(
        drill, target(world.api, world, drill, RigEvictor("end of", world.preempt))
    ).run()
    broken = []
    for result in record.results:
        if result.verdict is Verdict.BROKEN:
            broken.append(result.objective.promise)
    assert record.verdict == Verdict.BROKEN
    assert broken == ["no failure charged"]


def test_nodes_that_would_not_go_by_themselves_are_refused(world: World, serving: Pool) -> None:
    world.add_nodes(serving, 1)
    world.create_job(JOB, world.job_spec(serving, 1))
    world.wait_running(1)
    drill = find("cluster-lone-node")
    record = QUIET(drill, target(world.api, world, drill, TaintEvictor(world.api))).run()
    assert record.verdict == Verdict.STOPPED
    assert record.fail_step == "targets"
    assert "a serving node is never hit" in record.why
    assert not list_tainted_nodes(world)


def test_a_node_with_somebody_elses_pod_is_refused(work: World, spot: Pool) -> None:
    alien: Object = work.pod_template(spot)
    alien["spec"]["containers"] = [{"name": "main", "image": "none"}]
    for pod in work.pods("Running"):
        alien["spec"]["nodeName"] = pod["spec"]["nodeName"]
        work.create_pod(f"alien-{pod['metadata']['name']}", alien)
    drill = find("cluster-lone-node")
    record = QUIET(drill, target(work.api, work, drill, TaintEvictor(work.api))).run()
    assert record.verdict == Verdict.STOPPED
    assert record.fail_step == "targets"
    assert "runs there too" in record.why


def test_a_drill_on_gke_asks_gcloud_for_one_vm_in_its_environment(
    cluster: AClusterManager, work: World, tmp_path: Path
) -> None:
    env = platforms.load("example")
    named = f"gke_{env.project}_{env.region}_{env.cluster}"
    for name in work.nodes:
        work.api.merge(
            f"{NODES}/{name}",
            {"spec": {"providerID": f"gce://{env.project}/europe-west4-a/{name}"}},
        )
    platforms.publish(work.api, env)
    commands = tmp_path / "asked"
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(cluster.kubeconfig.read_text().replace(context(cluster), named))  # type: ignore[union-attr]
    gcloud = tmp_path / "bin" / "gcloud"
    gcloud.parent.mkdir()
    gcloud.write_text(
        f'#!/bin/sh\necho "$@" > {commands}.draft && mv {commands}.draft {commands}\n'
    )
    gcloud.chmod(0o755)
    path = {"PATH": f"{gcloud.parent}:{os.environ['PATH']}"}
    command = make_command(work, "gke-maintenance", "gke", kubeconfig, named, tmp_path)
    with subprocess.Popen(
        command,
        env=os.environ | path,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        until("gcloud was asked", lambda: commands.exists() or running.poll() is not None)
        verb, vm, *flags = commands.read_text().split()[2:]
        work.preempt([vm])
        result, _ = running.communicate(timeout=280)
    assert verb == "simulate-maintenance-event"
    assert flags == [f"--project={env.project}", "--zone=europe-west4-a"]
    assert json.loads(result)["drills"][0]["verdict"] == "held", result
