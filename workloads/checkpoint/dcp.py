"""Our format for those who keep `dcp.save` and `dcp.load`: a StorageWriter and a StorageReader.

    dcp.save(state_dict, storage_writer=HoldfastWriter(url, run="r", step=100))
    dcp.load(state_dict, storage_reader=HoldfastReader(url, run="r"))

PyTorch's planners decide who writes and reads what, so its resharding applies. Objects that are no tensors
are stored as JSON, never pickled. A save is as blocking as `dcp.save`; commit and checksums are as elsewhere.
"""

import io
import os
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from infra.contract.errors import InputError
from infra.contract.names import checked_run
from workloads.checkpoint.catalogue import committed_steps
from workloads.checkpoint.commit import commit
from workloads.checkpoint.format import Manifest, TensorPart
from workloads.checkpoint.pieces import laid_out, stream_bytes
from workloads.checkpoint.reading import Copy, Opened, Source, Transfer, open_step, saved_dtype
from workloads.checkpoint.retrying import Retrying
from workloads.checkpoint.settings import Tuning
from workloads.checkpoint.staging import copy_into
from workloads.checkpoint.storage import existing_storage, open_storage
from workloads.checkpoint.tree import decode, encode
from workloads.checkpoint.upload import Job, upload


class HoldfastWriter(StorageWriter):
    """Writes one step; make a new one for each save."""

    def __init__(self, url: str, *, run: str, step: int, tuning: Tuning | None = None) -> None:
        self._tuning = tuning or Tuning()
        self._storage = Retrying(open_storage(url), budget_s=self._tuning.retry_s)
        self._run, self._step = checked_run(run), step
        self._own: Manifest | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        _no_id(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        attempt = secrets.token_hex(6)
        return [replace(plan, storage_data=(attempt, rank, len(plans))) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        attempt, rank, world_size = plan.storage_data
        pieces = laid_out([_part_and_tensor(item, planner) for item in plan.items if item.tensor_data is not None])
        stream = torch.empty(stream_bytes(pieces), dtype=torch.uint8)
        copy_into(stream, pieces)
        values = {item.index.fqn: _json(item, planner) for item in plan.items if item.tensor_data is None}
        manifest = Manifest(
            run=self._run,
            step=self._step,
            attempt=attempt,
            rank=rank,
            world_size=world_size,
            shards=(),
            tensors=tuple(piece.part for piece in pieces),
            values=values,
        )
        job = Job(save=1, length=len(stream), shard_bytes=self._tuning.shard_size(len(stream)), manifest=manifest)
        self._own = upload(self._storage, memoryview(stream.numpy().data), job, parallel=self._tuning.parallel)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(index=item.index, size_in_bytes=0, storage_data=None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        assert self._own is not None

        def never(seconds: float) -> bool:
            time.sleep(seconds)
            return False

        commit(self._storage, self._own, replace=(), timeout_s=self._tuning.commit_timeout_s, abandoned=never)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


def _part_and_tensor(item: WriteItem, planner: SavePlanner) -> tuple[TensorPart, torch.Tensor]:
    assert item.tensor_data is not None
    resolved = planner.resolve_data(item)
    assert isinstance(resolved, torch.Tensor)
    tensor = resolved.detach()
    chunk = item.tensor_data.chunk
    return (
        TensorPart(
            key=item.index.fqn,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(item.tensor_data.size),
            offset=tuple(chunk.offsets),
            extent=tuple(chunk.sizes),
            at=0,
            bytes=tensor.numel() * tensor.element_size(),
        ),
        tensor,
    )


def _json(item: WriteItem, planner: SavePlanner) -> Any:
    lookup: Any = getattr(planner, "lookup_object", None)
    if lookup is None:
        raise InputError(
            f"planner cannot hand out {item.index.fqn} as an object",
            got=type(planner).__name__,
            allowed="DefaultSavePlanner or a subclass of it",
            fix="use such a planner, or keep only tensors in the state",
        )
    return encode(lookup(item.index), item.index.fqn)


class HoldfastReader(StorageReader):
    """Reads `step`, or the newest committed one. Every byte is verified; damage raises, on every rank by DCP."""

    def __init__(self, url: str, *, run: str, step: int | None = None, tuning: Tuning | None = None) -> None:
        self._tuning = tuning or Tuning()
        self._storage = Retrying(existing_storage(url), budget_s=self._tuning.retry_s)
        self._run, self._step = checked_run(run), step
        self._opened: Opened | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        _no_id(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        opened = self._open()
        entries: dict[str, Any] = {
            key: TensorStorageMetadata(
                properties=TensorProperties(dtype=saved_dtype(sources[0].part)),
                size=torch.Size(sources[0].part.shape),
                chunks=[
                    ChunkStorageMetadata(offsets=torch.Size(s.part.offset), sizes=torch.Size(s.part.extent))
                    for s in sources
                ],
            )
            for key, sources in opened.sources.items()
        }
        for manifest in opened.manifests:
            entries |= {key: BytesStorageMetadata() for key in manifest.values}
        return Metadata(state_dict_metadata=entries)

    def _open(self) -> Opened:
        if self._opened is None:
            steps = [self._step] if self._step is not None else committed_steps(self._storage, self._run)
            if not steps:
                raise InputError(
                    f"run {self._run} has no checkpoint", got="no commit", allowed="a committed step", fix="save first"
                )
            self._opened = open_step(self._storage, self._run, steps[0])
        return self._opened

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        opened = self._open()
        targets = [(item, planner.resolve_tensor(item)) for item in plan.items if item.type is not LoadItemType.BYTE_IO]
        copies = [
            Copy(
                source=_source_of(opened, item.storage_index.fqn, tuple(item.storage_index.offset or ())),
                into=target.detach(),
                start=tuple(item.storage_offsets),
                extent=tuple(item.lengths),
            )
            for item, target in targets
        ]
        Transfer(self._storage, opened, parallel=self._tuning.parallel).run([c for c in copies if c.into.numel()])
        for item, target in targets:
            planner.commit_tensor(item, target)
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, _as_planners_want_it(opened, item.storage_index.fqn))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


def _source_of(opened: Opened, key: str, offset: tuple[int, ...]) -> Source:
    return next(s for s in opened.sources[key] if s.part.offset == offset or not offset)


def _as_planners_want_it(opened: Opened, key: str) -> io.BytesIO:
    """Planners take bytes that torch.save wrote; these are made here, of JSON that was verified."""
    skeleton = next(manifest.values[key] for manifest in opened.manifests if key in manifest.values)
    written = io.BytesIO()
    torch.save(decode(skeleton, lambda _: torch.empty(0)), written)
    written.seek(0)
    return written


def _no_id(checkpoint_id: str | os.PathLike[str] | None) -> None:
    if checkpoint_id is not None:
        raise InputError(
            "checkpoint_id means nothing here",
            got=str(Path(checkpoint_id)),
            allowed="HoldfastWriter(url, run=..., step=...) and HoldfastReader(url, run=...)",
            fix="leave checkpoint_id away",
        )
