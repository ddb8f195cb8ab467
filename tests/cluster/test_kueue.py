"""Jobs over quota wait, are admitted in their turn, and give way by priority: the real Kueue."""

from typing import Any

import pytest

from infra.contract.pools import GPU_RESOURCE, Pool
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.jobs.api import Object

GROUP = "/apis/kueue.x-k8s.io/v1beta2"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
QUOTA = 2

pytestmark = pytest.mark.usefixtures("kueue")


def queue(world: World, pool: Pool, gpus: int) -> None:
    """A local queue `team` of the test's namespace, with `gpus` of the pool to lend."""
    create(world, "resourceflavors", {"nodeLabels": pool.selector() | world.selector})
    flavor = {"name": world.name, "resources": [{"name": GPU_RESOURCE, "nominalQuota": gpus}]}
    create(
        world,
        "clusterqueues",
        {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": [GPU_RESOURCE], "flavors": [flavor]}],
            "preemption": {"withinClusterQueue": "LowerPriority"},
        },
    )
    local = {"metadata": {"name": "team"}, "spec": {"clusterQueue": world.name}}
    world.api.create(world.path("localqueues", GROUP), local, fieldValidation="Strict")


def create(world: World, plural: str, spec: Object) -> None:
    body = {"metadata": {"name": world.name}, "spec": spec}
    world.api.create(f"{GROUP}/{plural}", body, fieldValidation="Strict")


def submit(world: World, pool: Pool, name: str, priority: str = "", **how: Any) -> None:
    spec = world.job_spec(pool, 1, suspend=True, **how)
    del spec["template"]["spec"]["nodeSelector"]  # Kueue puts in that of the flavor
    labels = {QUEUE_LABEL: "team"} | ({"kueue.x-k8s.io/priority-class": priority} if priority else {})
    body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
    world.api.create(world.path("jobs", "/apis/batch/v1"), body, fieldValidation="Strict")


def admitted(world: World) -> set[str]:
    jobs = world.api.items(world.path("jobs", "/apis/batch/v1"))
    return {job["metadata"]["name"] for job in jobs if not job["spec"]["suspend"]}


def why_held(world: World, name: str) -> str | None:
    for each in world.api.items(world.path("workloads", GROUP)):
        owner = each["metadata"]["ownerReferences"][0]["name"]
        for condition in each.get("status", {}).get("conditions", ()):
            if owner == name and condition["type"] == "QuotaReserved" and condition["status"] == "False":
                return condition["message"]
    return None


def test_a_job_over_quota_waits_and_is_admitted_when_one_ends(world: World, spot: Pool) -> None:
    world.add_nodes(spot, QUOTA + 1)  # a node is free, so it is the quota that holds
    queue(world, spot, QUOTA)
    submit(world, spot, "first", run_s=8)
    submit(world, spot, "second")
    until("both are admitted", lambda: admitted(world) == {"first", "second"})
    submit(world, spot, "third")
    reason = until("the third is held", lambda: why_held(world, "third"))
    assert "insufficient unused quota" in reason
    until("its turn has come", lambda: admitted(world) >= {"second", "third"})
    selector = world.job("third")["spec"]["template"]["spec"]["nodeSelector"]
    assert selector.items() >= spot.selector().items(), "the flavor's selector was put in"
    until("first completed", lambda: world.job("first")["status"].get("succeeded"))


def test_higher_priority_takes_quota_from_lower_within_a_queue(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 1)
    queue(world, spot, 1)
    for name, value in (("low", -5), ("high", 100)):
        body = {"metadata": {"name": f"{world.name}-{name}"}, "value": value}
        world.api.create(f"{GROUP}/workloadpriorityclasses", body)
    submit(world, spot, "background", f"{world.name}-low")
    until("the low one runs", lambda: admitted(world) == {"background"})
    submit(world, spot, "urgent", f"{world.name}-high")
    until("quota changed hands", lambda: admitted(world) == {"urgent"})
    assert not world.job("background")["status"].get("failed"), "giving way is not a failure"
