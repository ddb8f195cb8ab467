"""What an undisturbed step of an elastic gang costs beyond one all-reduce of its gradients.

Two ranks, one process group. Blocks of steps with a bare loop, with the plain sum and with the exact one take turns in
the same processes, each kind first as often as the others, so that a busy moment of the machine meets all of them. By
the clock, where ranks that share cores wait for each other, and by rank 0's own CPU time.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from holdfast.training.elastic.gradients import ExactGradientSum, GradientSum
from holdfast.training.model import ByteGPT, ModelConfig, next_byte_loss
from tests.workloads.library.training.elastic.gangs import free_ports
from tests.workloads.library.training.warm import Fork

RANKS, SHARDS, BLOCKS, STEPS = 2, 3, 12, 4
MODEL = ModelConfig(context=64, width=96, layers=2, heads=2)
SAMPLES = 4


def step_costs(folder: Path) -> dict[str, float]:
    """Median of the ratios of neighbouring blocks, less 1."""
    folder.mkdir(parents=True)
    (port,) = free_ports(1)
    ranks = [Fork(lambda rank=rank: _rank(rank, port, folder / "times")) for rank in range(RANKS)]
    if any([rank.wait() for rank in ranks]):
        raise RuntimeError("a rank of the step's cost failed")
    rows: list[dict[str, list[float]]] = json.loads((folder / "times").read_text())
    clocks = {"": 0, "_cpu": 1}
    return {
        kind + clock: round(statistics.median(row[kind][at] / row["bare"][at] for row in rows) - 1, 4)
        for kind in ("plain", "exact")
        for clock, at in clocks.items()
    }


def _rank(rank: int, port: int, result: Path) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = ByteGPT(MODEL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.randint(0, 255, (SAMPLES, MODEL.context + 1))
    inputs, targets = text[:, :-1], text[:, 1:]

    def backward() -> None:
        (next_byte_loss(model(inputs), targets) / (RANKS * SHARDS)).backward()

    sums: dict[str, GradientSum] = {
        "plain": GradientSum(model.parameters(), flags=RANKS + 1),
        "exact": ExactGradientSum(model.parameters(), flags=RANKS + 1),
    }
    flat = torch.zeros(sum(p.numel() for p in model.parameters()))

    def bare() -> None:
        at = 0
        flat.zero_()
        for p in model.parameters():
            p.grad = flat[at : at + p.numel()].view(p.shape)
            at += p.numel()
        for _ in range(SHARDS):
            backward()
        dist.all_reduce(flat)
        optimizer.step()

    def gang(total: GradientSum) -> None:
        total.begin()
        for _ in range(SHARDS):
            backward()
            total.add_shard()
        if total.reduce([0] * (RANKS + 1), dist.group.WORLD) is not None:
            optimizer.step()

    kinds: dict[str, Callable[[], None]] = {"bare": bare}
    kinds |= {kind: lambda total=total: gang(total) for kind, total in sums.items()}
    rows = [_block(kinds, number) for number in range(BLOCKS + 1)]
    dist.destroy_process_group()
    if rank == 0:
        result.write_text(json.dumps(rows[1:]))


def _block(kinds: dict[str, Callable[[], None]], number: int) -> dict[str, tuple[float, float]]:
    names = list(kinds)
    first = number % len(names)
    return {name: _seconds(kinds[name]) for name in [*names[first:], *names[:first]]}


def _seconds(step: Callable[[], None]) -> tuple[float, float]:
    """By the clock, and of this process's CPU time."""
    dist.barrier()
    began, used = time.monotonic(), time.process_time()
    for _ in range(STEPS):
        step()
    return time.monotonic() - began, time.process_time() - used
