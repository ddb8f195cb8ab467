"""Ranks that share a process group, and states to be compared bit by bit."""

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
    tensors = {key: t for key, t in capture(state).tensors.items() if not key.startswith("__")}
    return {
        key: (t.full_tensor() if isinstance(t, DTensor) else t).clone()
        for key, t in tensors.items()
    }


def same(found: dict[str, torch.Tensor], truth: dict[str, torch.Tensor]) -> bool:
    return found.keys() == truth.keys() and all(
        torch.equal(found[key], truth[key]) for key in truth
    )


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
    rendezvous = str(folder / f"rendezvous-{len(list(folder.glob('rendezvous*')))}")
    ranks = []
    for rank in range(world):
        ranks.append(
            jobs.context.Process(target=in_group, args=(body, rank, world, rendezvous, arguments))
        )
    for process in ranks:
        process.start()
    assert finish(ranks, timeout_s) == [0] * world, Path(f"{rendezvous}.log").read_text()
