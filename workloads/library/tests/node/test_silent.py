"""A real kubelet freezes while its Node object stays: a job's pod is replaced on another node, and the job is not charged."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from holdfast.contract.kubernetes import EXPENDABLE
from holdfast.contract.pools import UNREACHABLE, Pool, silence_tolerations
from holdfast.mover.silent_nodes import end_pods
from tests.cluster.sim.nodes import NODES
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.library.tests.node.lab import pods
from workloads.library.tests.node.lab.lab import Lab, Machine

pytestmark = pytest.mark.timeout(420)
DEFAULT_S = 300.0


def freeze(machine: Machine) -> None:
    """The kubelet alone; its containers go on."""
    for task in Path("/proc").glob("[0-9]*"):
        try:
            words = (task / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"kubelet") and f"--hostname-override={machine.name}".encode() in words:
            os.kill(int(task.name), signal.SIGSTOP)


def test_a_job_leaves_a_node_whose_kubelet_froze(lab: Lab, world: World, spot: Pool) -> None:
    lab.boot("spot-a", spot)
    template = pods.shell(spot, pods.STOPS_IN_ORDER, terminationGracePeriodSeconds=spot.window.pod_s)
    template["metadata"]["annotations"] = dict(EXPENDABLE)
    template["spec"]["tolerations"] = [*spot.tolerations(), *silence_tolerations()]
    world.create_job("job", pods.job(template))
    (lost,) = world.wait_running(1)
    lab.boot("spot-b", spot)
    began = time.monotonic()
    freeze(lab.machines["spot-a"])
    taints: list[str] = []

    def replaced() -> bool:
        node = lab.api.get(f"{NODES}/spot-a")
        if any(taint["key"] == UNREACHABLE for taint in node["spec"].get("taints", ())):
            taints.append("seen")
            end_pods(lab.api, ["spot-a"], time.time(), [world.name])
        return any(p["metadata"]["uid"] != lost["metadata"]["uid"] for p in world.pods("Running"))

    until("a replacement runs", replaced, 240)
    took_s = time.monotonic() - began
    print(json.dumps({"frozen_to_running_s": round(took_s, 1)}))
    assert taints, "the node controller found it silent; nothing else ended the pod"
    assert not world.job("job")["status"].get("failedIndexes"), "the job is not charged"
    assert took_s < DEFAULT_S, "the default toleration alone takes longer"
