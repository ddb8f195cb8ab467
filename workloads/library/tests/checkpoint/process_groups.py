"""Helpers for ranks that share a process group, and for comparing states bit by bit."""

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from holdfast.checkpoint.state import capture
from workloads.library.tests.checkpoint.jobs import Jobs, finish


def step(state: dict[str, Any], number: int) -> None:
    torch.manual_seed(number)
    state["optimizer"].zero_grad()
    state["model"](torch.randn(4, 8)).square().mean().backward()
    state["optimizer"].step()


def whole(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return copies of the whole tensors of a state, without the random streams."""
    tensors: dict[str, torch.Tensor] = {}
    for key, tensor in capture(state).tensors.items():
        if key.startswith("__"):
            continue
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        tensors[key] = full.clone()
    return tensors


def same(tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """Return whether both hold the same keys with equal tensors."""
    if tensors.keys() != expected.keys():
        return False
    return all(torch.equal(tensors[key], expected[key]) for key in expected)


def in_group(
    body: Callable[..., None],
    rank: int,
    world: int,
    rendezvous: str,
    arguments: tuple[Any, ...],
) -> None:
    sys.stderr = Path(f"{rendezvous}.log").open("a", buffering=1)  # noqa: SIM115
    timeout = timedelta(seconds=60)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world,
        timeout=timeout,
    )
    body(world, *arguments)
    dist.barrier()
    dist.destroy_process_group()


def run(
    jobs: Jobs,
    folder: Path,
    world: int,
    body: Callable[..., None],
    *arguments: Any,
    timeout_s: float = 120,
) -> None:
    """Run `body(world, *arguments)` on every rank of a new process group."""
    number = len(list(folder.glob("rendezvous*")))
    rendezvous = str(folder / f"rendezvous-{number}")
    ranks = []
    for rank in range(world):
        process_arguments = (body, rank, world, rendezvous, arguments)
        ranks.append(jobs.context.Process(target=in_group, args=process_arguments))
    for process in ranks:
        process.start()
    assert finish(ranks, timeout_s) == [0] * world, Path(f"{rendezvous}.log").read_text()
