"""A gang as a JobSet: crashes end it, and what could not run is refused. test_rendered.py preempts one."""

from typing import Any

import pytest

from holdfast.clients.api import ApiError, Object
from holdfast.contract.exit_codes import EXIT_BUG
from holdfast.contract.pools import Pool
from tests.cluster.sim.jobsets import GROUP, jobset
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World

GANG = 4

pytestmark = pytest.mark.usefixtures("jobset")


def gang(world: World, pool: Pool, **how: Any) -> Object:
    return jobset("gang", world.job_spec(pool, GANG, **how))


def status(world: World) -> Object:
    return world.api.get(f"{world.path('jobsets', GROUP)}/gang").get("status", {})


def terminal(world: World) -> str:
    return until("the JobSet ends", lambda: status(world).get("terminalState"))


def test_a_crashing_gang_fails_within_its_budget(world: World, spot: Pool) -> None:
    world.add_nodes(spot, GANG)
    world.api.create(world.path("jobsets", GROUP), gang(world, spot, run_s=1, code=EXIT_BUG))
    assert terminal(world) == "Failed"
    assert not status(world).get("restarts")


def test_the_webhook_refuses_what_the_controller_could_not_run(world: World, spot: Pool) -> None:
    wrong = gang(world, spot)
    wrong["spec"]["failurePolicy"]["rules"][0]["targetReplicatedJobs"] = ["nobody"]
    with pytest.raises(ApiError, match="nobody") as refused:
        world.api.create(world.path("jobsets", GROUP), wrong)
    assert refused.value.status in (403, 422)
