"""A node stops reporting while its Node object stays: the job goes on elsewhere, with the rendered
rights, within seconds.
"""

import contextlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from kubernetes import client

from holdfast.clients.api import Api, ApiError, Object
from holdfast.jobs.file.job_fields import OnNotice
from holdfast.mover.silent_nodes import REASON, end_pods
from holdfast.support.values import rfc3339
from holdfast.vocabulary.kubernetes import ANNOTATION_EXPENDABLE
from holdfast.vocabulary.pools import UNREACHABLE, Pool
from tests.cluster.sim import nodes
from tests.cluster.sim.stages import MANAGED
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.library.tests.cluster.cast import job_spec
from workloads.library.tests.cluster.objects import list_uids
from workloads.library.tests.cluster.test_mover import SPACE, apply_bodies, pods, render_bodies

OWN = "tests.holdfast.dev/silent"  # nodes that only the jobs of one test select
pytestmark = pytest.mark.timeout(400)


@contextlib.contextmanager
def silent(api: Api, pool: Pool) -> Iterator[str]:
    """A node that reports once. No simulator keeps it alive, so the control plane finds it silent
    by its own clock.
    """
    name = f"silent-{uuid.uuid4().hex[:5]}"
    body = nodes.node(pool, name, labels={OWN: name})
    del body["metadata"]["annotations"][MANAGED]
    api.create(nodes.NODES, body)
    try:
        report(api, name)
        yield name
    finally:
        nodes.remove(api, [name])


def report(api: Api, name: str) -> None:
    """Reports the node as ready now, as a kubelet does."""
    now = rfc3339(time.time())
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
    }
    ready |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
    api.merge(f"{nodes.NODES}/{name}/status", {"status": {"conditions": [ready]}})


@contextlib.contextmanager
def submit_job(api: Api, silent: str, count: int) -> Iterator[str]:
    bodies = render_bodies(
        name=f"quiet-{uuid.uuid4().hex[:5]}",
        nodes=count,
        on_notice=OnNotice.HANDLES,
    )
    job_spec(bodies[-1])["template"]["spec"]["nodeSelector"][OWN] = silent
    with apply_bodies(api, bodies) as job:
        yield job["metadata"]["name"]
    until("its pods are gone", lambda: not force_delete_pods(api, bodies[-1]["metadata"]["name"]))


def force_delete_pods(api: Api, job: str) -> list[Object]:
    """Force-deletes and returns the pods of a job: a silent node has no kubelet to end them."""
    remaining = pods(api, job)
    for pod in remaining:
        with contextlib.suppress(ApiError):  # gone by now
            api.delete(f"{SPACE}/pods/{pod['metadata']['name']}", gracePeriodSeconds=0)
    return remaining


def wait_until_placed(api: Api, job: str, silent: str, count: int) -> list[Object]:
    """Waits until all `count` pods of the job have a node, and returns them. The one on the silent
    node runs: a kubelet said so before it froze.
    """

    def bound() -> list[Object]:
        report(api, silent)
        candidates = pods(api, job)
        if len(candidates) == count and all(pod["spec"].get("nodeName") for pod in candidates):
            return candidates
        return []

    found = until("all pods have a node", bound)
    for pod in found:
        if pod["spec"]["nodeName"] == silent:
            api.merge(
                f"{SPACE}/pods/{pod['metadata']['name']}/status", {"status": {"phase": "Running"}}
            )
    return found


def is_unreachable(api: Api, silent: str) -> bool:
    for taint in api.get(f"{nodes.NODES}/{silent}")["spec"].get("taints", []):
        if taint["key"] == UNREACHABLE:
            return True
    return False


@dataclass
class Held:
    """A job with one pod on a silent node, and the others elsewhere."""

    node: str
    job: str
    before: list[Object]

    @property
    def stuck(self) -> set[str]:
        uids: set[str] = set()
        for pod in self.before:
            if pod["spec"]["nodeName"] == self.node:
                uids.add(pod["metadata"]["uid"])
        return uids

    def is_replaced(self, api: Api) -> bool:
        now = pods(api, self.job)
        running = []
        for p in now:
            if p["status"]["phase"] == "Running" and p["spec"]["nodeName"] != self.node:
                running.append(p)
        return len(running) == len(self.before) and not self.stuck & list_uids(now)


def test_a_job_and_a_jobset_leave_their_silent_nodes(
    world: World,
    api: Api,
    mover_account: client.ApiClient,
    spot: Pool,
) -> None:
    acting = Api.over(mover_account)
    with contextlib.ExitStack() as stack:
        workloads: list[Held] = []
        for count in (1, 2):  # a Job, a JobSet
            node = stack.enter_context(silent(api, spot))
            world.add_nodes(spot, count - 1, labels={OWN: node})
            job = stack.enter_context(submit_job(api, node, count))
            workloads.append(Held(node, job, wait_until_placed(api, job, node, count)))
        wrapped = job_spec(render_bodies(on_notice=OnNotice.WRAP)[-1])["template"]["metadata"]
        assert ANNOTATION_EXPENDABLE not in wrapped["annotations"], (
            "the effects of a second copy of it are unknown"
        )
        silent_nodes = [workload.node for workload in workloads]
        assert not end_pods(acting, silent_nodes, time.time()), "they are not asked to go yet"
        until(
            "the control plane finds the nodes silent",
            lambda: all(is_unreachable(api, workload) for workload in silent_nodes),
            120,
        )
        for workload in workloads:
            assert len(workload.stuck) == 1
            world.add_nodes(spot, len(workload.before), labels={OWN: workload.node})
        ended_uids: set[str] = set()

        def end_both() -> bool:
            ended_uids.update(end_pods(acting, silent_nodes, time.time()))
            return len(ended_uids) == len(workloads)

        until("the mover ends them", end_both, 180)
        until(
            "they run elsewhere",
            lambda: all(workload.is_replaced(api) for workload in workloads),
            120,
        )
        for workload in workloads:
            reasons = set()
            for event in api.items(f"{SPACE}/events"):
                if event["involvedObject"].get("uid") in workload.stuck:
                    reasons.add(event["reason"])
            assert REASON in reasons
