"""`python -m workloads.library.tests.bench.cluster`: a storm takes 30 % of the Spot nodes of a real control plane.

Jobs by index on 1,000 nodes with 5,000 pods.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial

from holdfast.clients.api import Api, Object
from tests import platforms
from tests.cluster.sim import control_plane, nodes, storm
from tests.cluster.sim.host import Scale
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.tools.build import TOOLS, build
from workloads.library.tests.bench.result import ended
from workloads.library.tests.processes import MIB, rss_mib, sampled

POOL = platforms.load("example").pool("spot-l4-g2-standard-8")
GANG = 100
LOST_SHARE = 0.3
STEADY_GOAL_S, MEMORY_GOAL_GB = 60.0, 2.5
LARGE = Scale(lease_s=40, parallelism=8, apiserver_heap_mib=1300)
WRITERS = 16
JOBS = "/apis/batch/v1"


@dataclass(kw_only=True)
class Figures:
    nodes: int
    pods: int
    nodes_ready_s: float = 0.0
    pods_running_s: float = float("inf")
    pods_hit: int = 0
    steady_s: float = float("inf")
    """From the notice to as many ready pods as before; inf: not within the limit."""
    jobs_complete: int = 0
    jobs: int = 0
    charged: int = 0
    rss_mib: dict[str, float] = field(default_factory=dict)
    """Of each process, when their sum was largest."""

    @property
    def memory_gb(self) -> float:
        return sum(self.rss_mib.values()) * MIB / 1e9


def measure(count: int, pods: int, limit_s: float) -> Figures:
    with control_plane.running(scale=LARGE) as plane:
        of_each = lambda: {name: rss_mib(pid) for name, pid in plane.processes.pids().items()}  # noqa: E731
        with sampled(of_each, 0.5) as rss:
            found = Figures(nodes=count, pods=pods, jobs=pods // GANG)
            play(Api(plane.kubeconfig("admin")), found, limit_s)
        found.rss_mib = max(rss, key=lambda each: sum(each.values()))
        return found


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


def play(api: Api, found: Figures, limit_s: float) -> None:
    began = time.monotonic()
    world, names = world_of(api, found.nodes, limit_s)
    found.nodes_ready_s = time.monotonic() - began

    began = time.monotonic()
    for n in range(found.jobs):
        create(world, f"job-{n}")
    try:
        until("all pods run", lambda: ready_pods(world) >= found.pods, limit_s)
    except AssertionError:
        return  # no storm over a cluster that is not steady
    found.pods_running_s = time.monotonic() - began

    began = time.monotonic()
    found.pods_hit = storm.preempt(api, names[: int(found.nodes * LOST_SHARE)], timeout_s=limit_s)
    with suppress(AssertionError):  # the figures say how far it got
        until("as many pods run as before", lambda: steady(world, found.pods), limit_s)
        found.steady_s = time.monotonic() - began
        until("all jobs are complete", lambda: released(world) == found.jobs, limit_s)
    found.jobs_complete, found.charged = complete(world), charged(world)


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
    return sum(any(c["type"] == "Complete" and c["status"] == "True" for c in conditions) for conditions in found)


def charged(world: World) -> int:
    """What the jobs' own limits have been charged with."""
    return sum(bool(status.get("failedIndexes")) + int(status.get("failed") or 0) for status in statuses(world))


def released(world: World) -> int:
    """Lets every pod that runs now end; how many jobs are complete."""
    world.release(WRITERS)
    return complete(world)


def steady(world: World, pods: int) -> bool:
    """The Jobs' count lags behind the storm, so the pods themselves have the last word."""
    if ready_pods(world) < pods:
        return False
    return sum("deletionTimestamp" not in pod["metadata"] for pod in world.pods("Running")) >= pods


def goals(large: Figures) -> dict[str, bool]:
    return {
        "all_jobs_complete": large.jobs_complete == large.jobs,
        "no_failure_charged": large.charged == 0,
        "steady_under_60_s": large.steady_s < STEADY_GOAL_S,
        "memory_under_2_5_gb": large.memory_gb < MEMORY_GOAL_GB,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a step may take")
    args = parser.parse_args()
    for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok"):
        build(TOOLS[name])
    found = measure(args.nodes, args.pods // GANG * GANG, args.limit)
    figures = {name: None if value == float("inf") else value for name, value in asdict(found).items()}
    ended({"bench": "cluster", "figures": figures}, goals(found))


if __name__ == "__main__":
    main()
