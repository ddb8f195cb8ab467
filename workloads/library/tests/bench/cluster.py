"""A storm that takes 30 % of the Spot nodes of a real control plane.

    python -m workloads.library.tests.bench.cluster

Indexed Jobs run on 1,000 nodes with 5,000 pods. --limit is the seconds that a step may take.
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
from workloads.library.tests.bench.result import finish, options
from workloads.library.tests.processes import MIB, rss_mib, sampled

Figures = dict[str, Any]
POOL = platforms.load("example").pool("spot-l4-g2-standard-8")
GANG = 100
LOST_SHARE = 0.3
STEADY_GOAL_S = 60.0
MEMORY_GOAL_GB = 2.5
LARGE = Scale(lease_s=40, parallelism=8, apiserver_heap_mib=1300)
WRITERS = 16
JOBS = "/apis/batch/v1"
CONTROL_PLANE = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kwok",
)


def measure(count: int, pods: int, limit_s: float) -> Figures:
    with control_plane.running(scale=LARGE) as plane:

        def sample_memory() -> dict[str, float]:
            memory_mib: dict[str, float] = {}
            for name, pid in plane.processes.pids().items():
                memory_mib[name] = rss_mib(pid)
            return memory_mib

        with sampled(sample_memory, 0.5) as samples:
            figures = play(Api(plane.kubeconfig("admin")), count, pods, limit_s)
    peak = max(samples, key=lambda sample: sum(sample.values()))
    return figures | {"rss_mib": peak}


def make_world(api: Api, count: int, limit_s: float) -> tuple[World, list[str]]:
    """Makes a world with `count` ready nodes; returns it and the nodes' names."""
    world = World(api, "bench")
    world.create()
    names = [f"node-{n}" for n in range(count)]
    objects = []
    for name in names:
        objects.append(nodes.node(POOL, name, labels=world.selector))
    with ThreadPoolExecutor(WRITERS) as writers:
        list(writers.map(partial(api.create, nodes.NODES), objects))
    until("all nodes are ready", lambda: nodes.ready(api, names), limit_s)
    return world, names


def play(api: Api, count: int, pods: int, limit_s: float) -> Figures:
    """Plays the storm.

    `steady_s` lasts from the notice to as many ready pods as before; it is None if the limit ran
    out.
    """
    figures: Figures = {
        "nodes": count,
        "pods": pods,
        "jobs": pods // GANG,
        "steady_s": None,
    }
    world, names = make_world(api, count, limit_s)
    for n in range(pods // GANG):
        create(world, f"job-{n}")
    until("all pods run", lambda: count_ready(world) >= pods, limit_s)

    start = time.monotonic()
    lost_names = names[: int(count * LOST_SHARE)]
    figures["pods_hit"] = storm.preempt(api, lost_names, timeout_s=limit_s)
    with suppress(AssertionError):  # the figures show how far it got
        until("as many pods run as before", lambda: is_steady(world, pods), limit_s)
        figures["steady_s"] = time.monotonic() - start
        until("all jobs are complete", lambda: release_pods(world) == figures["jobs"], limit_s)
    return figures | {
        "jobs_complete": count_complete(world),
        "charged": count_failures(world),
    }


def create(world: World, name: str) -> None:
    """Creates a job of pods that ask for a CPU and no GPU, so that five fit on a node."""
    spec = world.job_spec(POOL, GANG)
    spec["template"]["metadata"] = {}
    spec["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    world.create_job(name, spec)


def list_statuses(world: World) -> list[Object]:
    return [job["status"] for job in world.api.items(world.path("jobs", JOBS))]


def count_ready(world: World) -> int:
    """Returns the Jobs' own count: one list of a few objects instead of thousands of pods."""
    return sum(status.get("ready") or 0 for status in list_statuses(world))


def count_complete(world: World) -> int:
    complete = 0
    for status in list_statuses(world):
        for condition in status.get("conditions") or ():
            complete += condition["type"] == "Complete" and condition["status"] == "True"
    return complete


def count_failures(world: World) -> int:
    """Counts failures that Kubernetes has charged to the jobs' own limits."""
    charges = 0
    for status in list_statuses(world):
        charges += bool(status.get("failedIndexes")) + int(status.get("failed") or 0)
    return charges


def release_pods(world: World) -> int:
    """Lets every pod that runs now end; returns the number of complete jobs."""
    world.release(WRITERS)
    return count_complete(world)


def is_steady(world: World, pods: int) -> bool:
    """Tells whether as many pods run; lists them, because the Jobs' count lags behind the storm."""
    if count_ready(world) < pods:
        return False
    running = world.pods("Running")
    return sum("deletionTimestamp" not in pod["metadata"] for pod in running) >= pods


def goals(figures: Figures) -> dict[str, bool]:
    return {
        "all_jobs_complete": figures["jobs_complete"] == figures["jobs"],
        "no_failure_charged": figures["charged"] == 0,
        "steady_under_60_s": figures["steady_s"] is not None
        and figures["steady_s"] < STEADY_GOAL_S,
        "memory_under_2_5_gb": sum(figures["rss_mib"].values()) * MIB / 1e9 < MEMORY_GOAL_GB,
    }


def main() -> None:
    args = options(__doc__, nodes=1000, pods=5000, limit=600.0)
    for name in CONTROL_PLANE:
        build(TOOLS[name])
    figures = measure(args.nodes, args.pods // GANG * GANG, args.limit)
    finish({"bench": "cluster", "figures": figures}, goals(figures))


if __name__ == "__main__":
    main()
