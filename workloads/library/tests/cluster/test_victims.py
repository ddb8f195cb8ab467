"""The real Kueue preempts the job with the least at stake; by its own order it would take the one
admitted last.
"""

import time

import pytest

from holdfast.controllers.cluster_objects import since_s
from holdfast.ledger.events import Event
from holdfast.mover import preemption_priority
from holdfast.vocabulary.kubernetes import KUEUE_API, api_path
from holdfast.vocabulary.pools import Pool
from tests.cluster.sim import queues
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World

pytestmark = pytest.mark.timeout(300)


def is_suspended(world: World, name: str) -> bool:
    return world.job(name)["spec"]["suspend"]


@pytest.fixture
def uids(world: World, spot: Pool, kueue: None) -> dict[str, str]:
    """Returns the uids of two equal running jobs, with their names. They are admitted in different
    seconds, as Kueue compares whole seconds.
    """
    world.add_nodes(spot, 2)
    queues.lend(world, spot, 2)
    for name in ("first", "second"):
        queues.submit(world, spot, name)
        until(f"{name} runs", lambda name=name: not is_suspended(world, name))
        until("the next second", lambda since=int(time.time()): int(time.time()) > since)
    return {world.job(name)["metadata"]["uid"]: name for name in ("first", "second")}


def assert_the_first_yields(world: World, spot: Pool) -> None:
    queues.submit(world, spot, "urgent", queues.priority(world, "urgent", 100))
    until("the urgent job runs", lambda: not is_suspended(world, "urgent"))
    assert is_suspended(world, "first")
    assert not is_suspended(world, "second")


def test_between_equal_jobs_the_one_that_just_saved_yields(
    world: World, spot: Pool, uids: dict[str, str]
) -> None:
    # Both have run their minimum by then.
    later_s = time.time() + preemption_priority.MIN_RUN_S + 60
    saved_s = {"first": later_s - 5, "second": later_s - 3_600}

    def events(uid: str) -> list[Event]:
        name = uids.get(uid)
        if name:
            return [Event(int(saved_s[name] * 1e6), "commit", name, "training", "p", {})]
        return []

    assert preemption_priority.write_boosts(world.api, events, later_s, [world.name]) == 1, (
        "only one has something at stake"
    )
    assert_the_first_yields(world, spot)
    # A job that waits must not push out one that runs.
    until(
        "its boost is gone",
        lambda: preemption_priority.write_boosts(world.api, events, later_s, [world.name]) == 0,
    )


@pytest.mark.usefixtures("uids")
def test_between_equal_jobs_the_one_that_ran_its_minimum_yields(world: World, spot: Pool) -> None:
    """The newest job would never make progress if it yielded each time."""
    listed = world.api.items(f"{api_path(KUEUE_API)}/namespaces/{world.name}/workloads")
    first_s = min(since_s(workload, "Admitted") for workload in listed)
    now_s = first_s + preemption_priority.MIN_RUN_S
    assert preemption_priority.write_boosts(world.api, lambda _: (), now_s, [world.name]) == 2, (
        "one has run its minimum and counts by its age, the other has the full boost"
    )
    assert_the_first_yields(world, spot)
