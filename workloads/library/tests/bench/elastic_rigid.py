"""This project's rigid gang under the same loss: one of three nodes is killed, and all start again from the last save.

What a JobSet does is done here: the first pod that failed ends the others, and all are made anew. On a cluster a JobSet
takes some 2 s for that, and here nothing.
"""

import statistics
from pathlib import Path
from subprocess import Popen
from time import time

from workloads.library.tests.training.nodes import Nodes
from workloads.library.tests.training.runs import PATIENCE_S, Event, notice, power_loss

RIGID = "holdfast rigid"
NODES = 3
EVERY = 50
LOST_AT = 2 * EVERY + EVERY // 2
"""In the middle between two saves, where the mean loss of work is."""
ENDLESS = 10_000_000


def one_killed(folder: Path) -> dict[str, float]:
    nodes = Nodes(folder, "--set", f"batch={6 * NODES}", count=NODES)
    for run in nodes.runs:
        run.steps, run.every = ENDLESS, EVERY
    with nodes.started() as pods:
        nodes.wait_for_step(pods, LOST_AT)
        began = time()
        power_loss(pods[1])
        _end(pods)
        reached, before = nodes.furthest, len(_steps(nodes))
    with nodes.started() as pods:
        nodes.wait_for_step(pods, reached + 1)
        again = _steps(nodes)[before:]
    first = min(event["first_step"] for event in again)
    made_up = next(event["t"] for event in again if event["last_step"] > reached)
    return {
        "death_s": round(again[0]["t"] - began, 2),
        "lost_steps": reached + 1 - first,
        "made_up_s": round(made_up - began, 2),
        "step_ms": round(1000 * statistics.median(event["seconds"] for event in again), 1),
    }


def _end(pods: list[Popen[str]]) -> None:
    for pod in pods:
        if pod.poll() is None:
            notice(pod)
    for pod in pods:
        pod.wait(PATIENCE_S)


def _steps(nodes: Nodes) -> list[Event]:
    """In the order of the steps' ends; one rank leads and reports."""
    return sorted((event for run in nodes.runs for event in run.of("window")), key=lambda event: event["t"])
