"""How the real kubelet ends a pod, by every way a pod ends, and what the Job controller makes of
it.
"""

import time

import psutil
import pytest

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.job_snapshot import disruption
from holdfast.mover.silent_nodes import end_pods
from holdfast.vocabulary.exit_codes import EXIT_KILLED, EXIT_PREEMPTED
from holdfast.vocabulary.kubernetes import EXPENDABLE
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW, EXTENDED_WINDOW
from holdfast.vocabulary.pools import UNREACHABLE, Pool, silence_tolerations
from tests.cluster.sim.nodes import NODES
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.library.tests.node.lab import pods, seen
from workloads.library.tests.node.lab.lab import Lab, Machine
from workloads.library.tests.node.lab.seen import exit_code

pytestmark = pytest.mark.timeout(420)


def start(lab: Lab, world: World, template: Object, name: str = "job") -> Object:
    """Returns the running pod of a new Job once its script has logged a line: its trap is set."""
    world.create_job(name, pods.job(template))
    (pod,) = world.wait_running(1)
    folder = lab.machines[pod["spec"]["nodeName"]].config.path / "logs"
    until("the script is up", lambda: any("up" in p.read_text() for p in folder.rglob("*.log")))
    return pod


def is_charged(world: World, job: str = "job") -> bool:
    status = world.job(job)["status"]
    return bool(status.get("failed") or status.get("failedIndexes"))


def test_a_node_shutdown_notifies_the_pod_and_the_job_is_not_charged(
    lab: Lab, world: World, spot: Pool
) -> None:
    machine = lab.boot("spot-a", spot)
    pod = start(lab, world, pods.shell(spot, pods.STOPS_IN_ORDER))
    assert seen.preempted(lab, machine, pod)["status"]["reason"] == "Terminated"
    assert not is_charged(world)


def test_deaf_pod_is_killed_when_its_window_ends(lab: Lab, world: World, spot: Pool) -> None:
    machine = lab.boot("spot-a", spot)
    pod = start(lab, world, pods.shell(spot, pods.DEAF, terminationGracePeriodSeconds=30))
    start_s = time.monotonic()
    machine.notice()
    current = seen.wait_until_ended(lab.api, pod)
    took_s = time.monotonic() - start_s
    assert exit_code(current) == EXIT_KILLED
    assert DEFAULT_WINDOW.pod_s - 1 <= took_s < 30, f"killed after {took_s:.1f} s"


def test_the_extended_window_lets_a_long_save_finish(lab: Lab, world: World, spot: Pool) -> None:
    machine = lab.boot("spot-a", spot, EXTENDED_WINDOW)
    longer = DEFAULT_WINDOW.pod_s + 5
    script = pods.slow_to_stop(longer)
    pod = start(
        lab, world, pods.shell(spot, script, terminationGracePeriodSeconds=EXTENDED_WINDOW.pod_s)
    )
    assert lab.preempt(machine)
    assert exit_code(seen.wait_until_ended(lab.api, pod)) == EXIT_PREEMPTED, (
        f"{longer} s were granted"
    )


def test_an_eviction_is_free_and_a_deletion_is_charged(lab: Lab, world: World, spot: Pool) -> None:
    lab.boot("spot-a", spot)
    evicted = start(lab, world, pods.shell(spot, pods.STOPS_IN_ORDER), "evicted")
    assert world.evict(evicted["metadata"]["name"]) == 201
    current = seen.wait_until_ended(lab.api, evicted)
    assert disruption(current) == "EvictionByEvictionAPI"
    assert exit_code(current) == EXIT_PREEMPTED
    assert not is_charged(world, "evicted")
    world.api.delete(
        f"{world.path('jobs', '/apis/batch/v1')}/evicted", propagationPolicy="Background"
    )
    until("its pods are gone", lambda: not world.pods())

    deleted = start(lab, world, pods.shell(spot, pods.STOPS_IN_ORDER), "deleted")
    world.api.delete(f"{world.path('pods')}/{deleted['metadata']['name']}")
    assert world.wait_condition("deleted") == "Failed:FailedIndexes"


def test_a_no_execute_taint_ends_the_pod_by_the_taint_manager(
    lab: Lab, world: World, spot: Pool
) -> None:
    lab.boot("spot-a", spot)
    pod = start(lab, world, pods.shell(spot, pods.STOPS_IN_ORDER))
    taints = [{"key": "maintenance", "effect": "NoExecute"}]
    lab.api.merge(f"{NODES}/spot-a", {"spec": {"taints": taints}})
    current = seen.wait_until_ended(lab.api, pod)
    assert disruption(current) == "DeletionByTaintManager"
    assert exit_code(current) == EXIT_PREEMPTED
    assert not is_charged(world)


def test_a_power_loss_is_replaced_once_the_node_is_gone_and_not_charged(
    lab: Lab, world: World, spot: Pool
) -> None:
    machine = lab.boot("spot-a", spot)
    lost_pod = start(lab, world, pods.shell(spot, pods.STOPS_IN_ORDER))
    lab.forget(machine)
    lab.boot("spot-b", spot)
    world.wait_running(1, 240, old=[lost_pod["metadata"]["uid"]])
    assert not is_charged(world)


# A real kubelet freezes while its Node object stays: a job's pod is replaced on another node, and
# the job is not charged.

DEFAULT_S = 300.0


def freeze(machine: Machine) -> None:
    """Freezes only the kubelet; its containers go on."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or [""]
        if words[0].endswith("kubelet") and f"--hostname-override={machine.name}" in words:
            process.suspend()


def test_a_job_leaves_a_node_whose_kubelet_froze(lab: Lab, world: World, spot: Pool) -> None:
    lab.boot("spot-a", spot)
    template = pods.shell(
        spot, pods.STOPS_IN_ORDER, terminationGracePeriodSeconds=spot.window.pod_s
    )
    template["metadata"]["annotations"] = dict(EXPENDABLE)
    template["spec"]["tolerations"] = [*spot.tolerations(), *silence_tolerations()]
    world.create_job("job", pods.job(template))
    (lost_pod,) = world.wait_running(1)
    lab.boot("spot-b", spot)
    start_s = time.monotonic()
    freeze(lab.machines["spot-a"])
    taints: list[str] = []

    def has_replacement() -> bool:
        node = lab.api.get(f"{NODES}/spot-a")
        if any(taint["key"] == UNREACHABLE for taint in node["spec"].get("taints", ())):
            taints.append("seen")
            end_pods(lab.api, ["spot-a"], time.time(), [world.name])
        return any(
            p["metadata"]["uid"] != lost_pod["metadata"]["uid"] for p in world.pods("Running")
        )

    until("a replacement runs", has_replacement, 240)
    took_s = time.monotonic() - start_s
    assert taints, "the node controller found it silent; nothing else ended the pod"
    assert not world.job("job")["status"].get("failedIndexes"), "the job is not charged"
    assert took_s < DEFAULT_S, "the default toleration alone takes longer"
