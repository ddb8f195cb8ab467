"""The real Kueue preempts the job with the least at stake, though another one was admitted last."""

import time

import pytest

from holdfast.contract.kubernetes import JOB_API, KUEUE_API, api_path
from holdfast.contract.pools import Pool
from holdfast.exporter.objects import since_s
from holdfast.ledger.events import Event
from holdfast.mover import stakes
from tests.cluster.sim import queues
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World

pytestmark = pytest.mark.timeout(300)


def suspended(world: World, name: str) -> bool:
    return world.api.get(f"{api_path(JOB_API)}/namespaces/{world.name}/jobs/{name}")["spec"]["suspend"]


def submitted(world: World, spot: Pool, name: str) -> None:
    """It runs, and is the only one that was admitted in its second: Kueue compares whole ones."""
    queues.submit(world, spot, name)
    until(f"{name} runs", lambda: not suspended(world, name), 60)
    until("the next second", lambda since=int(time.time()): int(time.time()) > since)


def later_s() -> float:
    """All jobs have run their minimum by then."""
    return time.time() + stakes.MIN_RUN_S + 60


def test_of_two_equal_jobs_the_one_that_saved_just_now_yields(world: World, spot: Pool, kueue: None) -> None:
    """Though the other one was admitted last, which is the one that Kueue takes by its own order."""
    world.add_nodes(spot, 2)
    queues.lend(world, spot, 2)
    uids: dict[str, str] = {}
    for name in ("saved", "unsaved"):  # in the order of their admission
        submitted(world, spot, name)
        uids[world.job(name)["metadata"]["uid"]] = name
    ago_s = {"saved": 5.0, "unsaved": 3_600.0}

    def events(uid: str) -> list[Event]:
        name = uids.get(uid, "")
        at_us = int((later_s() - ago_s[name]) * 1e6) if name else 0
        return [Event(at_us, "commit", name, "training", "p", {})] if name else []

    assert stakes.write(world.api, events, later_s(), [world.name]) == 1, "only one has something at stake"
    urgent = queues.priority(world, "urgent", 100)
    queues.submit(world, spot, "urgent", urgent)
    until("the urgent job runs", lambda: not suspended(world, "urgent"), 60)
    assert {name: suspended(world, name) for name in ago_s} == {"saved": True, "unsaved": False}
    # What waits must not push out what runs.
    until("its boost is gone", lambda: stakes.write(world.api, events, later_s(), [world.name]) == 0, 30)


def test_of_two_equal_jobs_the_one_that_ran_its_minimum_yields(world: World, spot: Pool, kueue: None) -> None:
    """Kueue's own order takes the newest, which would never get anywhere."""
    world.add_nodes(spot, 2)
    queues.lend(world, spot, 2)
    for name in ("old", "new"):
        submitted(world, spot, name)
    listed = world.api.items(f"{api_path(KUEUE_API)}/namespaces/{world.name}/workloads")
    first_s = min(since_s(workload, "Admitted") for workload in listed)
    now_s = first_s + stakes.MIN_RUN_S
    assert stakes.write(world.api, lambda _: (), now_s, [world.name]) == 1, "one has run its minimum"
    queues.submit(world, spot, "urgent", queues.priority(world, "urgent", 100))
    until("the urgent job runs", lambda: not suspended(world, "urgent"), 60)
    assert {name: suspended(world, name) for name in ("old", "new")} == {"old": True, "new": False}
