"""A save as a rank hands it to its uploader, made without a trainer."""

from typing import Any

import torch

from holdfast.checkpoint.cadence import Hazard
from holdfast.checkpoint.format import Manifest
from holdfast.checkpoint.format.soundness import NOTES_KEY
from holdfast.checkpoint.save.orders import Job
from holdfast.checkpoint.save.staging import copy_into
from holdfast.checkpoint.state import capture
from holdfast.checkpoint.state.tensors import memory_of, pieces_of, stream_bytes


def job(state: dict[str, Any], step: int, rank: int = 0, world: int = 1) -> tuple[Job, memoryview]:
    """Of run `r`, and the bytes that it is about."""
    captured = capture(state)
    pieces = pieces_of(captured, rank, world)
    stream = torch.zeros(stream_bytes(pieces), dtype=torch.uint8)
    copy_into(stream, pieces)
    manifest = Manifest(
        run="r",
        step=step,
        attempt=f"{step:012x}",
        rank=rank,
        world_size=world,
        shards=(),
        tensors=tuple(piece.part for piece in pieces),
        values=captured.skeleton | {NOTES_KEY: Hazard().notes()},
    )
    return Job(save=step, length=len(stream), shard_bytes=1 << 20, manifest=manifest), memory_of(stream)
