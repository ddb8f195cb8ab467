"""Who gives way to whom: the real scheduler, with the rendered PriorityClass of work on Spot."""

from holdfast.clients.api import Api, Object
from holdfast.contract.kubernetes import PRIORITY_SPOT
from holdfast.contract.pools import Pool
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.workloads.manifests import rendered


def unschedulable(world: World, name: str) -> str:
    """The scheduler's message, once it has tried."""

    def message() -> str | None:
        conditions: list[Object] = world.pod(name)["status"].get("conditions", [])
        return next((c["message"] for c in conditions if c.get("reason") == "Unschedulable"), None)

    return until(f"{name} was tried", message)


def test_work_on_spot_yields_to_ordinary_work_and_to_system_pods(world: World, api: Api, spot: Pool) -> None:
    body = rendered.named("example", "PriorityClass", PRIORITY_SPOT)
    api.apply(api.path_of(body), body)
    low = world.pod_template(spot, priorityClassName=PRIORITY_SPOT)
    # The API server takes pods of a class from its own cache, a moment after the class is there.
    until("admission knows the class", lambda: world.try_pod("probe", low) == 0)
    world.add_nodes(spot, 1)
    world.create_pod("system", world.pod_template(spot, priorityClassName="system-cluster-critical"))
    world.wait_running(1)
    world.create_job("low", world.job_spec(spot, 1) | {"template": low})
    (pod,) = until("its pod is there", lambda: [p for p in world.pods() if p["metadata"]["name"] != "system"])
    name = pod["metadata"]["name"]
    assert "Insufficient nvidia.com/gpu" in unschedulable(world, name)
    assert world.pod("system")["status"]["phase"] == "Running"

    api.delete(f"{world.path('pods')}/system")
    until("there is room for it", lambda: world.pod(name)["status"]["phase"] == "Running")
    world.create_pod("ordinary", world.pod_template(spot))
    until("ordinary work takes its place", lambda: world.pod("ordinary")["status"]["phase"] == "Running")
    assert not world.job("low")["status"].get("failedIndexes"), "giving way is not charged"
