"""Who gives way to whom: the real scheduler."""

from holdfast.clients.api import ApiError, Object
from holdfast.contract.pools import Pool
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World, disruption

LOW = -5


def priority(world: World, name: str, value: int) -> str:
    body = {"metadata": {"name": f"{world.name}-{name}"}, "value": value}
    world.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
    until(f"admission knows {world.name}-{name}", lambda: known(world, f"{world.name}-{name}"))
    return f"{world.name}-{name}"


def known(world: World, priority_class: str) -> bool:
    """The API server takes pods of a class from its own cache, a moment after the class is there."""
    body = {"metadata": {"name": "trial"}, "spec": {"priorityClassName": priority_class, "containers": [{"name": "main", "image": "none"}]}}  # fmt: skip
    try:
        world.api.create(world.path("pods"), body, dryRun="All")
    except ApiError as error:
        if "no PriorityClass" not in str(error):
            raise
        return False
    return True


def unschedulable(world: World, name: str) -> str:
    """The scheduler's message, once it has tried."""

    def message() -> str | None:
        for condition in world.pod(name)["status"].get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
                return condition["message"]
        return None

    return until(f"{name} was tried", message)


def phase(world: World, name: str) -> str:
    return world.pod(name)["status"]["phase"]


def test_low_priority_yields_to_ordinary_work(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 1)
    low = priority(world, "spot", LOW)
    world.create_job("low", world.job_spec(spot, 1) | {"template": world.pod_template(spot, priorityClassName=low)})
    (pod,) = world.wait_running(1)
    world.create_pod("ordinary", world.pod_template(spot))
    until("ordinary work runs", lambda: phase(world, "ordinary") == "Running")
    victim = until("the victim has gone", lambda: gone_or_ended(world, pod))
    assert victim == "gone" or disruption(world.pod(pod["metadata"]["name"])) == "PreemptionByScheduler"
    assert not world.job("low")["status"].get("failedIndexes"), "giving way is not charged"


def gone_or_ended(world: World, pod: Object) -> str | None:
    found = world.api.find(f"{world.path('pods')}/{pod['metadata']['name']}")
    if found is None:
        return "gone"
    return "ended" if found["status"]["phase"] == "Failed" else None


def test_low_priority_never_takes_the_place_of_system_pods(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 1)
    system = world.pod_template(spot, priorityClassName="system-cluster-critical")
    world.create_pod("system", system)
    world.wait_running(1)
    low = priority(world, "spot", LOW)
    world.create_pod("low", world.pod_template(spot, priorityClassName=low))
    assert "Insufficient nvidia.com/gpu" in unschedulable(world, "low")
    assert phase(world, "system") == "Running"
