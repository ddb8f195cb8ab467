"""`python -m workloads.library.tests.bench.cluster`: a storm takes 30 % of the Spot nodes of a real
control plane.

Jobs by index on 1,000 nodes with 5,000 pods. --limit: seconds that a step may take.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast.clients.api import Api, Object
from tests import platforms
from tests.cluster.sim import control_plane, nodes, storm
from tests.cluster.sim.host import Scale
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.tools.build import TOOLS, build
from workloads.library.tests.bench.result import ended, options
from workloads.library.tests.processes import MIB, rss_mib, sampled

POOL = platforms.load("example").pool("spot-l4-g2-standard-8")
GANG = 100
LOST_SHARE = 0.3
STEADY_GOAL_S = 60.0
MEMORY_GOAL_GB = 2.5
LARGE = Scale(lease_s=40, parallelism=8, apiserver_heap_mib=1300)
WRITERS = 16
JOBS = "/apis/batch/v1"


def measure(count: int, pods: int, limit_s: float) -> dict[str, Any]:
    with control_plane.running(scale=LARGE) as plane:
        of_each = lambda: {name: rss_mib(pid) for name, pid in plane.processes.pids().items()}  # noqa: E731
        with sampled(of_each, 0.5) as rss:
            found = play(Api(plane.kubeconfig("admin")), count, pods, limit_s)
    # Of each process, when their sum was largest.
    return found | {"rss_mib": max(rss, key=lambda each: sum(each.values()))}


def world_of(api: Api, count: int, limit_s: float) -> tuple[World, list[str]]:
    """With so many nodes that are ready, and their names."""
    world = World(api, "bench")
    world.create()
    names = [f"node-{n}" for n in range(count)]
    wanted = [nodes.node(POOL, name, labels=world.selector) for name in names]
    with ThreadPoolExecutor(WRITERS) as writers:
        list(writers.map(partial(api.create, nodes.NODES), wanted))
    until("all nodes are ready", lambda: nodes.ready(api, names), limit_s)
    return world, names


def play(api: Api, count: int, pods: int, limit_s: float) -> dict[str, Any]:
    """`steady_s`: from the notice to as many ready pods as before; none: not within the limit."""
    found: dict[str, Any] = {
        "nodes": count,
        "pods": pods,
        "jobs": pods // GANG,
        "steady_s": None,
    }
    world, names = world_of(api, count, limit_s)
    for n in range(pods // GANG):
        create(world, f"job-{n}")
    until("all pods run", lambda: ready_pods(world) >= pods, limit_s)

    began = time.monotonic()
    found["pods_hit"] = storm.preempt(api, names[: int(count * LOST_SHARE)], timeout_s=limit_s)
    with suppress(AssertionError):  # the figures say how far it got
        until("as many pods run as before", lambda: steady(world, pods), limit_s)
        found["steady_s"] = time.monotonic() - began
        until("all jobs are complete", lambda: released(world) == found["jobs"], limit_s)
    return found | {
        "jobs_complete": complete(world),
        "charged": charged(world),
    }


def create(world: World, name: str) -> None:
    """Five pods fit a node by their CPU request; no GPU, or one pod would fill it."""
    spec = world.job_spec(POOL, GANG)
    spec["template"]["metadata"] = {}
    spec["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    world.create_job(name, spec)


def statuses(world: World) -> list[Object]:
    return [job["status"] for job in world.api.items(world.path("jobs", JOBS))]


def ready_pods(world: World) -> int:
    """By the Jobs' own count: one list of a few objects instead of thousands of pods."""
    return sum(status.get("ready") or 0 for status in statuses(world))


def complete(world: World) -> int:
    found = (status.get("conditions") or () for status in statuses(world))
    return sum(
        any(c["type"] == "Complete" and c["status"] == "True" for c in conditions)
        for conditions in found
    )


def charged(world: World) -> int:
    """What the jobs' own limits have been charged with."""
    return sum(
        bool(status.get("failedIndexes")) + int(status.get("failed") or 0)
        for status in statuses(world)
    )


def released(world: World) -> int:
    """Lets every pod that runs now end; how many jobs are complete."""
    world.release(WRITERS)
    return complete(world)


def steady(world: World, pods: int) -> bool:
    """The Jobs' count lags behind the storm, so the pods themselves have the last word."""
    if ready_pods(world) < pods:
        return False
    return sum("deletionTimestamp" not in pod["metadata"] for pod in world.pods("Running")) >= pods


def goals(found: dict[str, Any]) -> dict[str, bool]:
    return {
        "all_jobs_complete": found["jobs_complete"] == found["jobs"],
        "no_failure_charged": found["charged"] == 0,
        "steady_under_60_s": found["steady_s"] is not None and found["steady_s"] < STEADY_GOAL_S,
        "memory_under_2_5_gb": sum(found["rss_mib"].values()) * MIB / 1e9 < MEMORY_GOAL_GB,
    }


def main() -> None:
    args = options(__doc__, nodes=1000, pods=5000, limit=600.0)
    for name in (
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubectl",
        "kwok",
    ):
        build(TOOLS[name])
    found = measure(args.nodes, args.pods // GANG * GANG, args.limit)
    ended({"bench": "cluster", "figures": found}, goals(found))


if __name__ == "__main__":
    main()
