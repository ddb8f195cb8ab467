"""Checkpoints of other programs as one of this library: DCP folders, safetensors files and folders, files of torch.save.

A file of torch.save is read with `weights_only`, so that nothing in it can run. DCP's description of a checkpoint is
a pickle, which can: it is read only where the caller trusts it.
"""

from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from holdfast.checkpoint.commands.safetensors import read_safetensors
from holdfast.checkpoint.format import fence
from holdfast.checkpoint.format.commit import CommitState, commit
from holdfast.checkpoint.format.records import Manifest
from holdfast.checkpoint.save.staging import upload_now
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.state.pieces import pieces_of
from holdfast.checkpoint.state.tree import RNG_KEY, Captured, capture, checked_state
from holdfast.checkpoint.stores.storage import Storage, exists, random_hex
from holdfast.contract import object_names
from holdfast.contract.errors import InputError

# What weights_only raises is a class of the standard module, which is not imported here.
_serialization: Any = torch.serialization
_UNPICKLING: type[Exception] = _serialization.pickle.UnpicklingError

SAFETENSORS, DCP, TORCH = "safetensors", "DCP", "torch.save"


def kind_of(path: Path) -> str:
    """Raises InputError for what is none of the three."""
    # By what is there and not by its name alone: a DCP folder may have any.
    if (path / ".metadata").is_file():
        return DCP
    if path.suffix == ".safetensors" or (path.is_dir() and any(path.glob("*.safetensors"))):
        return SAFETENSORS
    if path.is_file():
        return TORCH
    raise InputError(
        "nothing that can be imported is there",
        got=str(path),
        allowed="a DCP folder, a safetensors file or folder, or a file of torch.save",
        fix="check the path",
    )


def read_state(path: Path, *, entry: str, trust: bool) -> dict[str, Any]:
    """Entries of a state. Tensors at the top become one entry of this name. Raises InputError."""
    kind = kind_of(path)
    if kind == SAFETENSORS:
        found: dict[str, Any] = read_safetensors(path)
    else:
        found = _read_dcp(path, trust=trust) if kind == DCP else _read_torch(path)
    if any(isinstance(value, torch.Tensor) for value in found.values()):
        found = {entry: found}
    return checked_state(found)


def _read_torch(path: Path) -> dict[str, Any]:
    try:
        # weights_only, or reading a file would run what is in it; mapped, since the state may not fit twice.
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, ValueError, EOFError, OSError, _UNPICKLING) as error:
        raise InputError(
            "file cannot be read without running what is in it",
            got=f"{path}: {str(error).splitlines()[0]}"[:300],
            allowed="a zip file of torch.save that holds tensors, numbers, strings, dicts and lists",
            fix="save the state_dict() instead of the object, in the program that made the file",
        ) from error
    if not isinstance(found, dict):
        raise _no_state(path, type(found).__name__)
    return found


def _read_dcp(path: Path, *, trust: bool) -> dict[str, Any]:
    if not trust:
        raise InputError(
            "DCP describes its checkpoints in a pickle, which can run code when it is read",
            got=str(path / ".metadata"),
            allowed="a folder that you or your own jobs wrote",
            fix="add --trust if that is so",
        )
    reader = FileSystemReader(path)
    described = reader.read_metadata().state_dict_metadata
    tensors = {
        key: torch.empty(found.size, dtype=found.properties.dtype)
        for key, found in described.items()
        if isinstance(found, TensorStorageMetadata)
    }
    if not tensors:
        raise _no_state(path, "no tensors")
    load(tensors, storage_reader=reader, no_dist=True)
    return _by_entry(tensors)


def _by_entry(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """DCP joins names by dots: what comes before the first one is the entry, where all have one."""
    heads = {key.partition(".")[0] for key in tensors}
    if any("." not in key for key in tensors) or not heads & {"model", "optimizer", "app", "state"}:
        return dict(tensors)
    found: dict[str, Any] = {}
    for key, tensor in tensors.items():
        head, _, rest = key.partition(".")
        found.setdefault(head, {})[rest] = tensor
    return found


def write_state(storage: Storage, run: str, step: int, state: dict[str, Any]) -> int:
    """One checkpoint of one rank, committed; its bytes. The run is taken from a trainer that may still write it.

    Raises InputError where the step is there already, StorageError where the store refuses."""
    if exists(storage, name := object_names.commit_object(run, step)):
        raise InputError(
            "this step is there already", got=name, allowed="a new step or run", fix="choose another --run"
        )
    # A resume from it keeps the seed of its own process: those of this one have nothing to do with the file.
    captured = without_streams(capture(state))
    manifest = Manifest(
        run=run, step=step, attempt=random_hex(6), rank=0, world_size=1, shards=(), tensors=(), values=captured.skeleton
    )
    written = upload_now(storage, pieces_of(captured, 0, 1), manifest, Tuning())
    # With the fence: a trainer that still writes this run must not commit a later step of another history.
    return commit(storage, written, state=CommitState(epoch=fence.take(storage, run)), timeout_s=60.0).total_bytes


def without_streams(captured: Captured) -> Captured:
    tensors = {key: found for key, found in captured.tensors.items() if not key.startswith(f"{RNG_KEY}/")}
    skeleton = {name: found for name, found in captured.skeleton.items() if name != RNG_KEY}
    return Captured(skeleton=skeleton, tensors=tensors, per_rank=frozenset())


def _no_state(path: Path, got: str) -> InputError:
    return InputError(
        "file holds no state", got=f"{path}: {got}", allowed="a dict of tensors", fix="save a state_dict() in it"
    )
