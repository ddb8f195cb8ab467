"""Our format for those who keep `dcp.save` and `dcp.load`: a StorageWriter and a StorageReader.

    dcp.save(state_dict, storage_writer=HoldfastWriter(url, run="r", step=100))
    dcp.load(state_dict, storage_reader=HoldfastReader(url, run="r"))

PyTorch's planners decide who writes and reads what, so its resharding applies. Objects that are no tensors
are stored as JSON, never pickled. A save is as blocking as `dcp.save`; commit and checksums are as elsewhere.
"""

import io
import os
from dataclasses import replace
from functools import partial
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
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.format import Manifest, TensorPart
from holdfast.checkpoint.format.commit import CommitState, commit, committed_steps
from holdfast.checkpoint.ranks import Ranks, agreed, outcome
from holdfast.checkpoint.restore import Skipped, none_verifies
from holdfast.checkpoint.restore.reading import Opened, Transfer, Wanted, open_step, saved_dtype
from holdfast.checkpoint.restore.reading import plan as copies_of
from holdfast.checkpoint.save.staging import upload_now
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.state import decode, encode
from holdfast.checkpoint.state.tensors import laid_out
from holdfast.checkpoint.stores.opening import reliable_storage
from holdfast.checkpoint.stores.storage import random_hex
from holdfast.contract.errors import InputError
from holdfast.contract.object_names import checked_run
from holdfast.runtime import logs


class HoldfastWriter(StorageWriter):
    """Writes one step; make a new one for each save."""

    def __init__(self, url: str, *, run: str, step: int, tuning: Tuning | None = None) -> None:
        self._tuning = tuning or Tuning()
        self._storage = reliable_storage(url, self._tuning, create=True)
        self._run, self._step = checked_run(run), step
        self._own: Manifest | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        _no_id(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan  # each rank's part goes to an object of its own: the store asks nothing of a plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        # On the coordinator, and sent to all with the plan: every rank must write below one attempt.
        attempt = random_hex(6)
        return [replace(plan, storage_data=(attempt, rank, len(plans))) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        attempt, rank, world_size = plan.storage_data
        pieces = laid_out([_part_and_tensor(item, planner) for item in plan.items if item.tensor_data is not None])
        # JSON of the object itself and not DCP's bytes, which are a pickle.
        values = {item.index.fqn: _json(item, planner) for item in plan.items if item.tensor_data is None}
        manifest = Manifest(
            run=self._run,
            step=self._step,
            attempt=attempt,
            rank=rank,
            world_size=world_size,
            shards=(),
            tensors=(),
            values=values,
        )
        self._own = upload_now(self._storage, pieces, manifest, self._tuning)
        done: Future[list[WriteResult]] = Future()
        # Sizes are for DCP's own metadata file, which is not written: the manifests say it all.
        done.set_result([WriteResult(index=item.index, size_in_bytes=0, storage_data=None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        assert self._own is not None
        # No epoch: `dcp.save` knows of no start of a run, so nothing fences two writers of one run here.
        commit(self._storage, self._own, state=CommitState(), timeout_s=self._tuning.commit_timeout_s)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False  # else DCP would choose this class for any path that it is given


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
    """Reads the newest checkpoint whose every byte verifies, on all ranks or on none; `step` insists on one.

    `step` and `skipped` hold afterwards what was read, and what was passed over and why.
    """

    def __init__(self, url: str, *, run: str, step: int | None = None, tuning: Tuning | None = None) -> None:
        self._tuning = tuning or Tuning()
        self._storage = reliable_storage(url, self._tuning)
        self._run, self._asked = checked_run(run), step
        self._reset()

    def _reset(self) -> None:
        self.step = self._asked
        self.skipped: Skipped = []
        self._steps: list[int] = []
        self._planned: Opened | None = None
        self._read: Opened | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        _no_id(checkpoint_id)
        self._reset()

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self._planned = opened = self._newest_description()
        # DCP wants one description for all ranks; here each rank wrote its own, and they are joined.
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

    def _newest_description(self) -> Opened:
        """For the plan only: its boxes are read from whichever step verifies."""
        self._steps = [self._asked] if self._asked is not None else committed_steps(self._storage, self._run)
        reasons: Skipped = []
        for step in self._steps:
            try:
                return open_step(self._storage, self._run, step)
            except Damaged as error:
                reasons.append((step, str(error)))
        raise none_verifies(self._run, reasons)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """On the coordinator: which steps all ranks try, and where they meet to agree."""
        # The reader must agree on its verdict, and DCP hands out no process group: a name of its own in the store will do.
        rendezvous = random_hex(6)
        return [
            replace(plan, storage_data=(rendezvous, rank, len(plans), self._steps)) for rank, plan in enumerate(plans)
        ]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        rendezvous, rank, world_size, steps = plan.storage_data
        ranks = Ranks.subgroup(rendezvous, rank, world_size, timeout_s=self._tuning.agree_timeout_s)
        targets = [(item, planner.resolve_tensor(item)) for item in plan.items if item.type is not LoadItemType.BYTE_IO]
        values = {item.storage_index.fqn for item in plan.items if item.type is LoadItemType.BYTE_IO}
        opened = self._verified(ranks, steps, [_wanted(item, target) for item, target in targets], values)
        for item, target in targets:
            # Only now: until every rank has verified the step, its bytes may be overwritten by an older one's.
            planner.commit_tensor(item, target)
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, _as_planners_want_it(opened, item.storage_index.fqn))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _verified(self, ranks: Ranks, steps: list[int], wanted: list[Wanted], values: set[str]) -> Opened:
        """The first of `steps` that every rank could read and verify; its bytes are in their places then."""
        for step in steps:
            reason = agreed(ranks, outcome(partial(self._fill, step, wanted, values, ranks.rank))).get("damaged")
            if reason is None:
                assert self._read is not None
                self.step = step
                return self._read
            self.skipped.append((step, reason))
            if ranks.coordinator:
                logs.warning("restore", f"skipped step {step}: {reason}")
        raise none_verifies(self._run, self.skipped)

    def _fill(self, step: int, wanted: list[Wanted], values: set[str], rank: int) -> None:
        self._read = opened = open_step(self._storage, self._run, step)
        assert self._planned is not None
        _check_alike(opened, self._planned, {want.key for want in wanted}, values)
        Transfer(self._storage, opened, parallel=self._tuning.parallel).run(copies_of(opened, wanted, rank=rank))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


def _check_alike(opened: Opened, planned: Opened, tensors: set[str], values: set[str]) -> None:
    """An older step serves the plan of a newer one only where it holds the same things."""
    shapes = [{key: sources[0].part.shape for key, sources in found.sources.items()} for found in (opened, planned)]
    other = sorted(key for key in tensors if shapes[0].get(key) != shapes[1].get(key))
    other += sorted(values.difference(*(manifest.values for manifest in opened.manifests)))
    if other:
        raise Damaged(f"it holds {other[0]} in another shape or not at all")


def _wanted(item: ReadItem, target: torch.Tensor) -> Wanted:
    chunk = item.storage_index.offset or (0,) * len(item.lengths)
    offset = tuple(at + within for at, within in zip(chunk, item.storage_offsets, strict=True))
    return Wanted(key=item.storage_index.fqn, offset=offset, into=target.detach())


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
            fix="leave checkpoint_id out",
        )
