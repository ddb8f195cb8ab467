"""Twenty jobs with deadlines over a recorded trace, in compressed time: the clock is a number, the cluster is real.

The API server, Kueue, JobSet's and the Job controller place the pods; the mover decides by what it sees of them.
A trainer on the fake clock works where its pods really run, and is billed for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from kubernetes import client

from holdfast.clients.api import Api, Object
from holdfast.contract.kubernetes import LABEL_QUEUE
from holdfast.contract.pools import LABEL_POOL_CLASS, Pool
from holdfast.contract.values import unix_s
from holdfast.mover.cluster_api import ClusterApi
from holdfast.mover.mover import Mover
from holdfast.mover.view import View
from holdfast.place import plan, scenarios, simulate
from holdfast.place.plan import Plan, Standing
from tests.cluster.sim import pods
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.library.tests.bench.placement_traces import Trace
from workloads.library.tests.cluster.test_mover import bodies_of, look
from workloads.library.tests.mover.trainer import Trainer

JOBS, TICK_H = 20, 1 / 6
# Sixteen H100 nodes in the recorded rounds, from a day on which Spot comes and goes: with an hour less of slack than they
# believe to have, six of the jobs would be late. A tick of the clock is one round.
ZONE, GANG, FIRST_ROUND = "asia-southeast1-b", 16, 640
SPACE = "/api/v1/namespaces/training"
ON_DEMAND_QUEUE = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/on-demand"
POLICIES = ("patient", "eager", "steady")


def plans() -> list[Plan]:
    """5 to 13 h of work; from next to no slack to as much as the work."""
    return [
        Plan(
            policy=POLICIES[n % 3], work_h=5.0 + 0.4 * n, deadline_h=(5.0 + 0.4 * n) * (1.12 + 0.1 * (n % 8)) + 0.6,
            restart_h=0.2, interval_h=0.3, checkpoint_h=0.01, spot_usd=1.0, on_demand_usd=3.145,
        )
        for n in range(JOBS)
    ]  # fmt: skip


@dataclass
class Fleet:
    """The jobs in the cluster, and where their pods were when last looked at."""

    api: Api
    bodies: dict[str, Object]
    trainers: dict[str, Trainer]
    seen: View = field(default_factory=View)
    spot_nodes: list[str] = field(default_factory=list[str])

    def spot_is(self, world: World, spot: Pool, *, there: bool) -> bool:
        """Nodes come or go as the trace has it; whether anything changed."""
        if there == bool(self.spot_nodes):
            return False
        if there:
            self.spot_nodes = world.add_nodes(spot, JOBS, labels={})
            return True
        world.preempt(self.spot_nodes)
        for trainer in self.trainers.values():
            if trainer.standing is Standing.SPOT:
                trainer.is_placed(Standing.WAITING, evicted=True)
        self.spot_nodes = []
        return True

    def work(self, now_h: float) -> bool:
        """One tick; whether a job came to its end."""
        before = set(self.open())
        for trainer in self.trainers.values():
            trainer.works(now_h, now_h + TICK_H)
        ended = before - set(self.open())
        if ended:
            self.ends(ended)
        return bool(ended)

    def pods(self) -> list[Object]:
        return [
            p for p in self.api.items(f"{SPACE}/pods") if p["metadata"]["labels"].get("holdfast.dev/job") in self.bodies
        ]

    def settle(self, queues: dict[str, str]) -> None:
        """Until every pod runs where its job's queue puts it, and the mover has seen so."""
        wanted = {name: standing(queues[name], bool(self.spot_nodes)) for name in queues if name in self.open()}

        def there() -> bool:
            found = self.pods()
            placed = {p["metadata"]["labels"]["holdfast.dev/job"]: capacity(p) for p in found if runs(p)}
            if any(placed.get(name, Standing.WAITING) is not at for name, at in wanted.items()):
                return False
            look(self.seen, self.api, found)
            return True

        until(f"the jobs stand where they should: {wanted}", there)
        for name, at in wanted.items():
            if at is not self.trainers[name].standing:
                self.trainers[name].is_placed(at)

    def open(self) -> list[str]:
        return [name for name, trainer in self.trainers.items() if trainer.finished_h == np.inf]

    def ends(self, names: set[str]) -> None:
        """Their processes come to their end, and the Job controller completes them."""

        def complete() -> bool:
            # A pod of a node that was lost may go, and another take its place, at any moment.
            for pod in self.pods():
                if pod["metadata"]["labels"]["holdfast.dev/job"] in names and runs(pod):
                    pods.end(self.api, pod)
            return all(is_complete(self.api.get(self.api.path_of(self.bodies[n]))) for n in names)

        until(f"{names} complete", complete)


def standing(queue: str, spot_there: bool) -> Standing:
    if queue == "on-demand":
        return Standing.ON_DEMAND
    return Standing.SPOT if spot_there else Standing.WAITING


def runs(pod: Object) -> bool:
    return pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]


def capacity(pod: Object) -> Standing:
    return Standing.ON_DEMAND if pod["spec"]["nodeSelector"].get(LABEL_POOL_CLASS) == "serving" else Standing.SPOT


def is_complete(job: Object) -> bool:
    return any(c["type"] == "Complete" and c["status"] == "True" for c in job["status"].get("conditions", ()))


@pytest.fixture
def fleet(api: Api, platform: None) -> Iterator[Fleet]:
    """Twenty jobs of one's own as they are rendered for the example, sent to its cluster."""
    queue = api.get(ON_DEMAND_QUEUE)
    # The example buys four GPUs on demand; here all twenty jobs may need one at the same time.
    for flavor in queue["spec"]["resourceGroups"][0]["flavors"]:
        for resource in flavor["resources"]:
            resource["nominalQuota"] = "9999Gi" if resource["name"] in ("memory", "ephemeral-storage") else "999"
    api.merge(ON_DEMAND_QUEUE, {"spec": {"resourceGroups": queue["spec"]["resourceGroups"]}})
    made = Fleet(api, {}, {})
    for number, given in enumerate(plans()):
        (body,) = bodies_of(plan=given, name=f"due-{number}")
        api.apply(api.path_of(body), body)
        made.bodies[body["metadata"]["name"]] = body
        made.trainers[body["metadata"]["name"]] = Trainer(body["metadata"]["name"], given)
    yield made
    for body in made.bodies.values():
        api.delete(api.path_of(body), propagationPolicy="Background")


def test_twenty_jobs_keep_their_deadlines_for_what_was_simulated(
    world: World, api: Api, mover_account: client.ApiClient, fleet: Fleet, spot: Pool, serving: Pool
) -> None:
    world.add_nodes(serving, JOBS, labels={})
    mover, trainers = Mover(ClusterApi(Api.over(mover_account))), fleet.trainers
    began_s = min(unix_s(api.get(api.path_of(body))["metadata"]["creationTimestamp"]) for body in fleet.bodies.values())
    queues = dict.fromkeys(trainers, "spot")
    unsettled, returned, made = True, 0, 0
    for tick, there in enumerate(recorded().up):
        now_s = began_s + tick * TICK_H * 3_600
        if fleet.spot_is(world, spot, there=bool(there)) or unsettled:
            fleet.settle(queues)
        for trainer in trainers.values():
            trainer.writes(now_s)
        moves = mover.step(fleet.seen.seen(lambda job: trainers[job.name].events), now_s)
        made += len(moves)
        if moves:
            queues |= {move.job.name: move.to.value for move in moves}
            returned += sum(move.to is Standing.SPOT for move in moves)
            fleet.settle(queues)
        unsettled = fleet.work(tick * TICK_H)
        if not fleet.open():
            break

    late = {t.name: t.finished_h - t.plan.deadline_h for t in trainers.values() if t.finished_h > t.plan.deadline_h}
    assert not late
    assert returned, "nobody came back to Spot, so only half of the policy was tried"
    assert sum(t.usd for t in trainers.values()) == pytest.approx(sum(map(simulated, trainers.values())), rel=0.03)
    events = [e for e in api.items(f"{SPACE}/events") if e["reason"] == "PlacementMoved"]
    assert sum(e["involvedObject"]["name"] in trainers for e in events) == made
    labels = {n: api.get(api.path_of(b))["metadata"]["labels"][LABEL_QUEUE] for n, b in fleet.bodies.items()}
    assert labels == queues


def recorded() -> Trace:
    return Trace(name=ZONE, gap_h=TICK_H, up=np.roll(scenarios.record()[ZONE] >= GANG, -FIRST_ROUND))


def simulated(trainer: Trainer) -> float:
    """USD of the same job on the same trace."""
    outcome = simulate.simulate(trainer.plan.runs(), recorded().paths(), plan.POLICIES[trainer.plan.policy])
    return float(outcome.usd[0])
