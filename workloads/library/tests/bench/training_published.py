"""Ray's published plan for just-in-time saves (ray-project/ray#65047, July 2026), with our trainer.

Eight nodes train 1,600 steps and save every 400, and four times one node gets a notice, at the
steps that Ray's own run then saved. The figure is the same: `wasted_steps`, those that the leading
rank ran beyond 1,600. Ray's model is larger and its notice longer (30 s), which does not change the
count. The plan is also run with nodes that are lost without a notice.
"""

from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.nodes import Nodes
from workloads.library.tests.training.runs import notice, power_loss, run_server

NODES = 8
STEPS = 1600
EVERY = 400
NOTICED_AT = (696, 867, 1396, 1548)
PUBLISHED = {"periodic saves": 517, "just-in-time saves": 91}
NOTICED = "with notice"
WAYS: dict[str, Callable[[Popen[str]], object]] = {NOTICED: notice, "without notice": power_loss}
PATIENCE_S = 3600.0


def run_ray_plan(folder: Path) -> dict[str, Any]:
    """Counts steps that were run again, by our trainer and as published."""
    wasted = {}
    with run_server() as server:
        for way, take_down in WAYS.items():
            wasted[way] = _count_repeats(folder / way, take_down, server)
    return {
        "steps": STEPS,
        "preemptions": len(NOTICED_AT),
        "wasted_steps": wasted,
        "published": PUBLISHED,
    }


def _count_repeats(
    folder: Path, take_down: Callable[[Popen[str]], object], server: ForkServer
) -> int:
    nodes = Nodes(
        folder,
        "--steps",
        str(STEPS),
        "--every",
        str(EVERY),
        count=NODES,
        server=server,
        patience_s=PATIENCE_S,
    )
    for node, step in enumerate(NOTICED_AT, start=1):  # never node 0, whose record counts the steps
        nodes.ended(step, lambda pods, node=node: take_down(pods[node]))
    codes = nodes.complete()
    if any(codes):
        raise RuntimeError(f"the plan was not completed: exit codes {codes}\n{nodes.log()}")
    return len(nodes.runs[0].of("window")) - STEPS
