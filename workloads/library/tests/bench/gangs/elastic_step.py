"""What an undisturbed step of an elastic gang costs beyond one all-reduce of its gradients.

Two members of a gang, by the library's own loop. A step of it and a bare one, with one flat buffer,
the same backward passes and one all-reduce of the same group, take turns in the same processes,
each first as often as the other, so that a busy moment of the machine meets both. By the clock,
where ranks that share cores wait for each other, and by rank 0's own CPU time.
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
MODEL = ModelConfig(context=64, width=96, layers=2, heads=2)
SAMPLES = 4
Times = tuple[float, float]
"""By the clock, and of this process's CPU time."""
Step = Callable[[], None]


def step_costs(home: Path) -> dict[str, dict[str, float]]:
    """By clock the cost over a bare step: the median of the ratios of neighbours, less 1, and
    between what 95 of 100 such benches would show it.
    """
    home.mkdir(parents=True)
    nodes = tuple(("127.0.0.1", port) for port in free_ports(RANKS))
    side_by_side(RANKS, lambda rank: _member(rank, nodes, home))
    times = np.array(json.loads((home / "times").read_text()))
    return {name: _over(*times[:, :, at].T) for at, name in enumerate(("plain", "plain_cpu"))}


def no_more_than(cost: float, costs: dict[str, dict[str, float]]) -> bool:
    """By the clock; by CPU time where the clock cannot tell, and then only if it does not speak
    against it.
    """
    clock = costs["plain"]
    cpu = costs["plain_cpu"]
    return clock["cost"] <= cost or (clock["at_least"] <= cost and cpu["cost"] <= cost)


def _over(ours: np.ndarray, others: np.ndarray) -> dict[str, float]:
    ratios = ours / others - 1
    drawn = np.random.default_rng(0).choice(ratios, (RESAMPLES, len(ratios)))
    lowest, highest = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
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
        bare = _bare(model, optimizer, loss)

        def elastic() -> None:
            next(steps)
            for _ in gang.shards():
                gang.backward(loss())
            if gang.reduce():
                optimizer.step()

        rounds = [_round([elastic, bare], number) for number in range(WARM + ROUNDS)][WARM:]
    if rank == 0:
        (home / "times").write_text(json.dumps(rounds))


def _bare(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]
) -> Step:
    parameters = list(model.parameters())
    flat = torch.zeros(sum(p.numel() for p in parameters))
    views = [
        view.view(p.shape)
        for view, p in zip(flat.split([p.numel() for p in parameters]), parameters, strict=True)
    ]

    def step() -> None:
        flat.zero_()
        for parameter, view in zip(parameters, views, strict=True):
            parameter.grad = view
        for _ in range(SHARDS):
            (loss() / (RANKS * SHARDS)).backward()
        dist.all_reduce(flat)
        optimizer.step()

    return step


def _round(steps: list[Step], number: int) -> list[Times]:
    """In the order of `steps`; another of them begins each time."""
    times = [_timed(step) for step in steps[:: 1 if number % 2 else -1]]
    return times[:: 1 if number % 2 else -1]


def _timed(step: Step) -> Times:
    dist.barrier()
    began = time.monotonic()
    used = time.process_time()
    step()
    return time.monotonic() - began, time.process_time() - used
