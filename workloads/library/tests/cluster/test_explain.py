"""`explain` against the real control plane: each cause is made, then asked for."""

import pytest

from holdfast.cost import prices
from holdfast.jobs.diagnose import explain
from holdfast.jobs.diagnose.explain import Row, rows
from holdfast.jobs.diagnose.failures import Count
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.exit_codes import EXIT_BUG
from holdfast.vocabulary.kubernetes import KUEUE_INADMISSIBLE
from holdfast.vocabulary.pools import Pool
from tests import platforms
from tests.cluster.sim import flex, queues
from tests.cluster.sim.explained import ask
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World


def test_quota_is_named_with_what_is_asked_lent_and_used(
    world: World, spot: Pool, kueue: None
) -> None:
    world.add_nodes(spot, 1)
    queues.lend(world, spot, 1)
    queues.submit(world, spot, "first")
    ask(world, "first", "none")
    for name in ("second", "third"):
        queues.submit(world, spot, name)
        ask(world, name, "quota")
    explained = "quota: asks for 1 nvidia.com/gpu, queue team lends 1, 1 are in use"
    until(
        "Kueue has counted",
        lambda: ask(world, "third", "quota").cause.blocker == explained,
    )
    explanation = ask(world, "third", "quota")
    assert explanation.cause.position.startswith("2 of 2 waiting in queue team, for ")
    assert explanation.cause.evidence.startswith(
        f"kubectl describe workload -n {world.name} job-third"
    )


def test_a_job_that_no_quota_will_ever_fit_does_not_wait_for_its_turn(
    world: World, spot: Pool, kueue: None
) -> None:
    queues.lend(world, spot, 1)
    queues.submit(world, spot, "wide", pods=2)
    message = KUEUE_INADMISSIBLE["ExceedsMaxQuota"]
    until("it is explained", lambda: ask(world, "wide", "quota").cause.action == message)


def test_a_flex_queue_is_explained_by_its_request(world: World, spot: Pool, kueue: None) -> None:
    queues.lend(world, spot, 2)
    flex.check(world)
    queues.submit(world, spot, "queued")
    explained = f"quota is reserved, admission check {world.name} is Pending"
    until(
        "Kueue has listed the check",
        lambda: ask(world, "queued", "gate").cause.blocker == explained,
    )

    (workload,) = world.api.items(world.path("workloads", queues.GROUP))
    accepted = {
        "type": "Accepted",
        "status": "True",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    waits = {
        "type": "Provisioned",
        "status": "False",
        "message": "Provisioning Request wasn't found.",
    }
    flex.request(world, "queued-1", workload, accepted, waits)
    found = ask(world, "queued", "flex-queue").cause
    since = (
        "request queued-1 accepted 2026-01-01T00:00:00Z, no nodes yet: Provisioning Request wasn't"
        " found"
    )
    assert found.blocker == f"flex queue: 1 nvidia.com/gpu for 1 pods; {since}"
    assert found.evidence == f"kubectl describe provisioningrequest -n {world.name} queued-1"


def test_a_queue_that_admits_nothing_gives_its_reason(
    world: World, spot: Pool, kueue: None
) -> None:
    queues.lend(world, spot, 2)
    world.api.merge(f"{queues.GROUP}/clusterqueues/{world.name}", {"spec": {"stopPolicy": "Hold"}})
    queues.submit(world, spot, "held")
    until(
        "it is explained",
        lambda: "queue team admits nothing: " in ask(world, "held", "quota").cause.blocker,
    )


def test_a_crash_is_counted_apart_from_evictions(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 2)
    world.create_job("crashing", world.job_spec(spot, 2, run_s=2, code=EXIT_BUG))
    explanation = ask(world, "crashing", "failed")
    assert f"exit code {EXIT_BUG}" in explanation.cause.blocker
    assert explanation.cause.evidence.startswith(f"kubectl logs -n {world.name} crashing-")

    world.create_job("evicted", world.job_spec(spot, 2))
    world.wait_running(2)
    world.preempt(list(world.nodes))
    back_off = ask(world, "evicted", "back-off")
    assert "2 were evicted: TerminationByKubelet" in back_off.cause.blocker
    assert "evicted 2, crashed 0" in back_off.state
    listed = {row.name: row for row in listing(world)}
    assert listed["crashing"].evicted == Count(0)
    assert listed["evicted"].evicted == Count(2)
    assert (listed["crashing"].crashed.number > 0, listed["evicted"].crashed) == (True, Count(0))

    world.add_nodes(spot, 2)
    world.wait_running(2)
    for pod in world.pods("Failed"):  # as garbage collection does once their nodes are gone
        world.api.delete(f"{world.path('pods')}/{pod['metadata']['name']}")
    until("their pods are gone", lambda: not world.pods("Failed"))
    listed = {row.name: row for row in listing(world)}
    assert listed["evicted"].evicted == Count(2), "and still counted"


def test_list_prices_jobs_and_unknown_name_gets_the_nearest(world: World, spot: Pool) -> None:
    world.add_nodes(spot, 1)
    world.create_job("short", world.job_spec(spot, 1, run_s=2))
    assert world.wait_condition("short") == "Complete"
    (row,) = listing(world)
    assert row.status == "Complete"
    assert row.why == "done"
    assert row.capacity == Capacity.SPOT
    assert row.ran_s >= 1
    assert row.usd
    assert row.usd < 0.01
    with pytest.raises(InputError, match="did you mean short"):
        explain.explain(world.api, "shrot", world.name)


def listing(world: World) -> list[Row]:
    return rows(world.api, platforms.load("example"), prices.load(), namespace=world.name)
