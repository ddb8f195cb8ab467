"""Pods that the real scheduler will not place for their volumes, by a gate, or without an autoscaler's help."""

from typing import Any

import pytest

from holdfast.contract.pools import GPU_RESOURCE, LABEL_ZONE, Pool
from tests.cluster.sim.explained import ask, one_pod
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World

CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "corpus"}}


def claim(world: World, **spec: Any) -> None:
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Gi"}}}
    body = {"metadata": {"name": "corpus"}, "spec": asked | spec}
    world.api.create(world.path("persistentvolumeclaims"), body)


def test_a_claim_that_does_not_exist_is_named(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 1)
    world.create_job("reader", one_pod(world, spot, volumes=[CLAIM]))
    found = ask(world, "reader", "volume").cause
    assert found.blocker == f"1 of 1 pods have no node: claim corpus does not exist in {world.name}"
    assert found.evidence == f"kubectl get pvc -n {world.name}"


@pytest.mark.parametrize(
    ("storage_class", "why"),
    [("", "100Gi of no storage class: no persistent volumes available"), ("fast", 'storageclass.storage.k8s.io "fast" not found')],
    ids=["no volume", "no class"],
)  # fmt: skip
def test_a_claim_that_is_not_bound_is_named_with_its_size_and_reason(
    world: World, spot: Pool, storage_class: str, why: str
) -> None:
    world.add_nodes(spot, 1)
    claim(world, storageClassName=storage_class)
    world.create_job("reader", one_pod(world, spot, volumes=[CLAIM]))

    def explained() -> bool:
        found = ask(world, "reader", "volume").cause
        return "claim corpus is Pending, 100Gi of" in found.blocker and why in found.blocker

    until("the claim's own reason is given", explained)
    assert ask(world, "reader", "volume").cause.evidence == f"kubectl describe pvc -n {world.name} corpus"


def test_a_disk_of_another_zone_is_named(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 1)
    zone = {"matchExpressions": [{"key": LABEL_ZONE, "operator": "In", "values": ["elsewhere-a"]}]}
    spec = {
        "capacity": {"storage": "100Gi"},
        "accessModes": ["ReadWriteOnce"],
        "nodeAffinity": {"required": {"nodeSelectorTerms": [zone]}},
        "claimRef": {"namespace": world.name, "name": "corpus"},
        "hostPath": {"path": "/none"},
    }
    world.api.create("/api/v1/persistentvolumes", {"metadata": {"name": world.name}, "spec": spec})
    try:
        claim(world, storageClassName="", volumeName=world.name)
        path = f"{world.path('persistentvolumeclaims')}/corpus"
        until("the claim is bound", lambda: world.api.get(path).get("status", {}).get("phase") == "Bound")
        world.create_job("reader", one_pod(world, spot, volumes=[CLAIM]))
        found = ask(world, "reader", "volume").cause
        assert "1 node(s) didn't match PersistentVolume's node affinity" in found.blocker
        assert "a disk serves one zone" in found.action
    finally:
        world.api.delete(f"/api/v1/persistentvolumes/{world.name}")


def test_a_scheduling_gate_is_named(world: World, spot: Pool) -> None:
    world.create_job("gated", one_pod(world, spot, schedulingGates=[{"name": "example.com/quota"}]))
    found = ask(world, "gated", "gate").cause
    assert found.blocker == "1 of 1 pods have no node: held by the gate example.com/quota"


def test_an_affinity_that_no_node_meets_is_a_selector(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 1)
    term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["nvme"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    world.create_job("picky", one_pod(world, spot, affinity=affinity))
    assert "didn't match Pod's node affinity" in ask(world, "picky", "selector").cause.blocker


def test_what_is_short_beside_gpus_is_quoted_from_the_scheduler(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 1)
    container = {"name": "main", "image": "none", "resources": {"limits": {GPU_RESOURCE: "1", "memory": "9Ti"}}}
    world.create_job("hungry", one_pod(world, spot, containers=[container]))
    blocker = ask(world, "hungry", "capacity").cause.blocker
    assert "1 Insufficient memory" in blocker
    assert "preemption" not in blocker


@pytest.mark.parametrize(
    ("reason", "message", "cause"),
    [
        ("FailedScaleUp", "Node scale up in zones europe-west4-a associated with this pod failed: GCE out of resources. Pod is at risk of not being scheduled.", "stock-out"),
        ("FailedScaleUp", "Node scale up in zones europe-west4-a associated with this pod failed: GCE quota exceeded. Pod is at risk of not being scheduled.", "quota"),
        ("FailedScaleUp", "Node scale up in zones a associated with this pod failed: GCE_STOCKOUT", "stock-out"),
        ("FailedScaleUp", "Node scale up failed: GCE_QUOTA_EXCEEDED", "quota"),
        ("NotTriggerScaleUp", "pod didn't trigger scale-up: 12 node(s) didn't match Pod's node affinity/selector, 3 max node group size reached", "pool-limit"),
        ("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 in backoff after failed scale-up", "stock-out"),
        ("NotTriggerScaleUp", "pod didn't trigger scale-up: 2 node(s) didn't match Pod's node affinity/selector", "selector"),
        ("TriggeredScaleUp", "pod triggered scale-up: [{https://www.googleapis.com/x/instanceGroups/gke-spot-l4 0->1 (max: 4)}]", "scale-up"),
    ],
    ids=["stock-out", "project quota", "stock-out code", "quota code", "pool at its maximum", "backs off", "no pool fits", "on the way"],
)  # fmt: skip
def test_the_autoscalers_event_is_sorted_by_what_can_be_done(
    world: World, spot: Pool, reason: str, message: str, cause: str
) -> None:
    """There is no autoscaler here: the test writes the event that GKE's would, into the real API server."""
    world.create_job("waiting", one_pod(world, spot))
    (pod,) = until("its pod is there", world.pods)
    world.add_event(pod, reason, message)
    blocker = ask(world, "waiting", cause).cause.blocker
    if cause != "selector":
        assert message.removesuffix(" Pod is at risk of not being scheduled.").rstrip(".") in blocker
