"""A rank, a call that fails, and a save as a rank hands it to its uploader, made without a trainer."""

from collections.abc import Callable
from typing import Any

import torch

from holdfast.checkpoint.cadence import Hazard
from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.save.decision import manifest_of
from holdfast.checkpoint.save.staging import copy_into
from holdfast.checkpoint.save.uploader import Job
from holdfast.checkpoint.state import capture
from holdfast.checkpoint.state.tensors import memory_of, pieces_of, stream_bytes
from holdfast.runtime.stop import OneProcessStore


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
    """Of run `r`, and the bytes that it is about."""
    captured = capture(state)
    ranks = Ranks(OneProcessStore(), rank, world)
    pieces = pieces_of(captured, rank, world)
    stream = torch.zeros(stream_bytes(pieces), dtype=torch.uint8)
    copy_into(stream, pieces)
    manifest = manifest_of("r", ranks, step, f"{step:012x}", captured, pieces, Hazard().notes())
    return Job(
        save=step,
        length=len(stream),
        shard_bytes=1 << 20,
        manifest=manifest,
    ), memory_of(stream)
