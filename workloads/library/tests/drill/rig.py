"""`python -m workloads.library.tests.drill.rig cluster|node [DRILL...]`: brings the test rig up and runs its drills there.

The cluster is the control plane of the cluster tier with simulated
Spot nodes; the nodes are the real kubelets of the node tier, so that needs root.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.clients.api import Api, Object
from holdfast.contract.errors import Unjudged, run_cli
from holdfast.contract.lifecycle import DEFAULT_WINDOW
from holdfast.contract.pools import Pool
from holdfast.drill import console
from holdfast.drill.catalogue import SAVE_EVERY, of
from holdfast.drill.commands import Builder, chosen, run_all
from holdfast.drill.plan import Drill, Place
from holdfast.drill.runner import DrillRunner
from holdfast.drill.target import Target, Undo
from holdfast.drill.targets.cluster import Cluster, Named
from holdfast.drill.targets.evictors import NodeEvictor
from tests import platforms
from tests.cluster.sim.control_plane import missing_tools
from tests.cluster.sim.manager import HostManager
from tests.cluster.sim.world import World

if TYPE_CHECKING:
    from workloads.library.tests.node.lab.lab import Lab

PODS, SPARE = 27, 9  # 30 % of 27 nodes are 8
JOB = "train"
STEPS = 1_000_000  # the drill ends first


@dataclass
class RigEvictor:
    """Takes nodes away, and brings as many again for the next drill, as a pool does."""

    description: str
    how: Callable[[list[str]], object]
    again: Callable[[list[str]], object] | None = None
    evicted: list[str] = field(default_factory=list)

    def check(self, node: Object) -> str:
        return ""

    def evict(self, nodes: Sequence[str]) -> str:
        self.how(list(nodes))
        self.evicted += nodes
        return f"{self.description} {len(nodes)} of them"

    def rollback(self) -> Iterable[Undo]:
        if self.evicted and self.again:
            gone, self.evicted = self.evicted, []
            yield f"replace {len(gone)} nodes", partial(self.again, gone)


RUNNER = DrillRunner(log=console.moment)


def target(api: Api, world: World, drill: Drill, evictor: NodeEvictor, events: Path | None = None) -> Target:
    named = Named(namespace=world.name, selector=f"batch.kubernetes.io/job-name={JOB}", events=events)
    return Cluster(api, named, drill.fault, evictor)


@contextmanager
def simulated(spot: Pool, pods: int = PODS, spare: int = SPARE) -> Generator[World]:
    """A control plane of its own with a running Job on simulated Spot nodes."""
    missing = missing_tools()
    if missing:
        raise Unjudged(f"`make tools` has not built {', '.join(missing)}")
    manager = HostManager("drill")
    try:
        manager.create()
        world = World(Api(manager.kubeconfig), "drill")
        world.create()
        world.add_nodes(spot, pods + spare)
        world.create_job(JOB, world.job_spec(spot, pods))
        world.wait_running(pods)
        yield world
    finally:
        manager.delete()


@contextmanager
def real(spot: Pool, folder: Path) -> Generator[tuple["Lab", World]]:
    """Two real kubelets, and our trainer on one of them."""
    from workloads.library.tests.node.lab import pods
    from workloads.library.tests.node.lab.lab import Lab

    lab = Lab()
    try:
        world = World(lab.api, "drill")
        world.create()
        for name in ("spot-a", "spot-b"):
            lab.boot(name, spot)
        arguments = [
            *("-m", "holdfast", "train", "run", "--checkpoints", folder / "checkpoints", "--run", JOB),
            *("--ranks", 1, "--steps", STEPS, "--every", SAVE_EVERY, "--device", "cpu", "--set", "report_every=1"),
            *("--events", folder / "events.jsonl", "--window", DEFAULT_WINDOW.pod_s),
        ]
        world.create_job(JOB, pods.job(pods.python(spot, [str(argument) for argument in arguments], folder)))
        world.wait_running(1)
        yield lab, world
    finally:
        lab.close()


def on_cluster(drills: list[Drill], out: Path) -> int:
    spot = next(p for p in platforms.load("example").pools if p.name.startswith("spot-l4"))
    with simulated(spot) as world:
        evictor = RigEvictor("notice and end of", world.preempt, lambda gone: world.add_nodes(spot, len(gone)))
        build: Builder = lambda drill, _folder: target(world.api, world, drill, evictor)  # noqa: E731
        return run_all(drills, out, build, RUNNER)[0]


def on_nodes(drills: list[Drill], out: Path) -> int:
    from workloads.library.tests.node.conftest import _missing as missing  # pyright: ignore[reportPrivateUsage]

    if lacking := missing():
        raise Unjudged(lacking)
    spot = platforms.load("example").pool("spot-a100")
    with tempfile.TemporaryDirectory(prefix="holdfast-drill-") as scratch, real(spot, Path(scratch)) as (lab, world):
        evictor = RigEvictor(
            "a Spot shutdown of",
            lambda names: [lab.preempt(lab.machines[name]) for name in names],
            lambda names: [lab.boot(name, spot) for name in names],
        )
        events = Path(scratch) / "events.jsonl"
        build: Builder = lambda drill, _folder: target(lab.api, world, drill, evictor, events)  # noqa: E731
        return run_all(drills, out, build, RUNNER)[0]


def main() -> None:
    parser = argparse.ArgumentParser(prog="workloads.library.tests.drill.rig", description=__doc__)
    parser.add_argument("target", choices=("cluster", "node"))
    parser.add_argument("drills", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("out/drills"))
    given = parser.parse_args()
    drills = chosen(given.drills, given.target) if given.drills else of(Place(given.target))
    run_drills = on_cluster if given.target == "cluster" else on_nodes
    sys.exit(run_drills(drills, given.out.resolve()))


if __name__ == "__main__":
    run_cli(main)
