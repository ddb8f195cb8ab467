"""A rank, a call that fails, and a job for an uploader, without a trainer."""

from collections.abc import Callable
from typing import Any

import torch

from holdfast.checkpoint.cadence import Hazard
from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.save.agreement import make_manifest
from holdfast.checkpoint.save.staging import copy_into
from holdfast.checkpoint.save.uploader import Job
from holdfast.checkpoint.state import capture
from holdfast.checkpoint.state.tensors import make_pieces, stream_bytes, view_memory
from holdfast.runtime.stop import OneProcessStore


def make_adamw(model: torch.nn.Module, lr: float = 1e-3) -> torch.optim.AdamW:
    """Returns an optimizer of the parameters that are trained."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(parameters, lr=lr)


def alone() -> Ranks:
    return Ranks(OneProcessStore(), 0, 1)


def failing(error: Exception) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise error

    return call


def job(
    state: dict[str, Any],
    step: int,
    rank: int = 0,
    world: int = 1,
) -> tuple[Job, memoryview]:
    """Makes a job of run `r`, and returns it with its staged bytes."""
    captured = capture(state)
    ranks = Ranks(OneProcessStore(), rank, world)
    pieces = make_pieces(captured, rank, world)
    stream = torch.zeros(stream_bytes(pieces), dtype=torch.uint8)
    copy_into(stream, pieces)
    notes = Hazard().notes()
    manifest = make_manifest("r", ranks, step, f"{step:012x}", captured, pieces, notes)
    upload_job = Job(
        save=step,
        length=len(stream),
        shard_bytes=1 << 20,
        manifest=manifest,
    )
    return upload_job, view_memory(stream)
