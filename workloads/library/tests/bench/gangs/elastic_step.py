"""The cost of an undisturbed step of an elastic gang over one all-reduce of its gradients.

A gang of two members runs the library's loop. Its step and a bare step (one flat buffer, the same
backward passes and one all-reduce of the same group) take turns in the same processes. Each is
first as often as the other, so that a busy moment of the machine meets both. Times are taken by the
clock, where ranks that share cores wait for each other, and as CPU time of rank 0.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from holdfast.training.elastic.gang import ElasticGang
from holdfast.training.gang.member_addresses import Places
from holdfast.training.trainer.model import ByteGPT, ModelConfig, next_byte_loss
from workloads.library.tests.bench.kill_lane import side_by_side
from workloads.library.tests.training.elastic.gangs import free_ports

RANKS = 2
SHARDS = 3
ROUNDS = 300
WARM = 6
RESAMPLES = 2_000
NEVER = 10**6
MODEL = ModelConfig(
    context=64,
    width=96,
    layers=2,
    heads=2,
)
SAMPLES = 4
Times = tuple[float, float]
"""Seconds by the clock, and seconds of this process's CPU time."""
Step = Callable[[], None]


def step_costs(home: Path) -> dict[str, dict[str, float]]:
    """Measures the cost over a bare step, by the clock and as CPU time.

    The cost is the median ratio of neighboring steps less 1, with its 95 % interval.
    """
    home.mkdir(parents=True)
    nodes = tuple(("127.0.0.1", port) for port in free_ports(RANKS))
    side_by_side(RANKS, lambda rank: _member(rank, nodes, home))
    times = np.array(json.loads((home / "times").read_text()))
    clock_s = times[:, :, 0].T
    cpu_s = times[:, :, 1].T
    return {"plain": _relative_cost(*clock_s), "plain_cpu": _relative_cost(*cpu_s)}


def is_at_most(limit: float, costs: dict[str, dict[str, float]]) -> bool:
    """Judges by the clock, or by CPU time if the limit lies within the clock's interval."""
    clock = costs["plain"]
    cpu = costs["plain_cpu"]
    if clock["cost"] <= limit:
        return True
    return clock["at_least"] <= limit and cpu["cost"] <= limit


def _relative_cost(steps_s: np.ndarray, bare_s: np.ndarray) -> dict[str, float]:
    ratios = steps_s / bare_s - 1
    samples = np.random.default_rng(0).choice(ratios, (RESAMPLES, len(ratios)))
    lowest, highest = np.quantile(np.median(samples, axis=1), (0.025, 0.975))
    figures = {
        "cost": np.median(ratios),
        "at_least": lowest,
        "at_most": highest,
    }
    return {name: round(float(value), 4) for name, value in figures.items()}


def _member(rank: int, nodes: tuple[tuple[str, int], ...], home: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = ByteGPT(MODEL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.randint(0, 255, (SAMPLES, MODEL.context + 1))

    def loss() -> torch.Tensor:
        return next_byte_loss(model(text[:, :-1]), text[:, 1:])

    gang = ElasticGang(
        str(home / "checkpoints"),
        {"model": model, "optimizer": optimizer},
        run="cost",
        places=Places(nodes=nodes, index=rank, min_nodes=RANKS),
        shards=RANKS * SHARDS,
        every=NEVER,
    )
    with gang:
        steps = gang.steps(NEVER)
        bare = _make_bare_step(model, optimizer, loss)

        def elastic() -> None:
            next(steps)
            for _ in gang.shards():
                gang.backward(loss())
            if gang.reduce():
                optimizer.step()

        rounds = []
        for number in range(WARM + ROUNDS):
            rounds.append(_time_round([elastic, bare], number))
    if rank == 0:
        (home / "times").write_text(json.dumps(rounds[WARM:]))


def _make_bare_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]
) -> Step:
    parameters = list(model.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    flat = torch.zeros(sum(sizes))
    views = list[torch.Tensor]()
    for piece, parameter in zip(flat.split(sizes), parameters, strict=True):
        views.append(piece.view(parameter.shape))

    def step() -> None:
        flat.zero_()
        for parameter, view in zip(parameters, views, strict=True):
            parameter.grad = view
        for _ in range(SHARDS):
            (loss() / (RANKS * SHARDS)).backward()
        dist.all_reduce(flat)
        optimizer.step()

    return step


def _time_round(steps: list[Step], number: int) -> list[Times]:
    """Times each step, in the order of `steps`; every second round runs them in reverse."""
    order = 1 if number % 2 else -1
    times = [_time_step(step) for step in steps[::order]]
    return times[::order]


def _time_step(step: Step) -> Times:
    dist.barrier()
    start = time.monotonic()
    cpu_start = time.process_time()
    step()
    return time.monotonic() - start, time.process_time() - cpu_start
