"""Preempted five times in a row: when the same pod is made anew as a plain Job and as a JobSet."""

import time

import pytest

from holdfast.clients.api import Object
from holdfast.contract.kubernetes import LABEL_JOBSET
from holdfast.contract.pools import Pool
from holdfast.jobs.job_snapshot import when
from tests.cluster.sim import operators
from tests.cluster.sim.jobsets import GROUP, jobset
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.library.tests.node.lab import pods
from workloads.library.tests.node.lab.lab import Lab

PREEMPTIONS = 5
FIRST_BACK_OFF_S = 10  # of the Job controller; doubled with each failure, also with those that its policy ignores
PLAIN, OURS = "plain Job", "JobSet"


def by_kind(found: list[Object]) -> dict[str, Object]:
    return {OURS if LABEL_JOBSET in pod["metadata"]["labels"] else PLAIN: pod for pod in found}


@pytest.mark.timeout(1200)
def test_a_plain_job_waits_ever_longer_and_a_jobset_does_not(
    lab: Lab, world: World, spot: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    operators.install(operators.JOBSET, lab.plane, lab.api)
    script = pods.shell(spot, pods.STOPS_IN_ORDER)
    plain = pods.job(script, backoffLimit=0)
    del plain["backoffLimitPerIndex"]
    machine = lab.boot("spot-0", spot)
    world.create_job("plain", plain)
    world.api.create(world.path("jobsets", GROUP), jobset("ours", pods.job(script)), fieldValidation="Strict")
    delays: dict[str, list[float]] = {PLAIN: [], OURS: []}
    for n in range(PREEMPTIONS):
        before = {pod["metadata"]["uid"] for pod in world.wait_running(2)}
        noticed = time.time()
        lab.preempt(machine)
        machine = lab.boot(f"spot-{n + 1}", spot)
        fresh = until("both run again", lambda old=before: replaced(world, old), 400)
        for kind, pod in by_kind(fresh).items():
            delays[kind].append(when(pod["metadata"]["creationTimestamp"]) - noticed)
    with capsys.disabled():
        print(f"\nseconds from notice to the new pod: {delays}")
    for n, waited in enumerate(delays[PLAIN]):
        assert waited > FIRST_BACK_OFF_S * 2**n - 2
    assert max(delays[OURS]) < FIRST_BACK_OFF_S
    assert not world.job("plain")["status"].get("failed"), "slow, but not charged"


def replaced(world: World, old: set[str]) -> list[Object] | None:
    found = [pod for pod in world.pods("Running") if pod["metadata"]["uid"] not in old]
    return found if len(by_kind(found)) == 2 else None
