"""Checkpoints of other programs as ours, and ours as files of safetensors.

A file of torch.save is read with `weights_only`, so that nothing in it can run. DCP's description of a checkpoint is a
pickle, which can: it is read only where the caller trusts it. A safetensors file is a length, a JSON header and raw
bytes.
"""

import json
import mmap
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from holdfast.checkpoint.format import Manifest, fence
from holdfast.checkpoint.format.commit import CommitState, commit
from holdfast.checkpoint.save.staging import upload_now
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.state import capture, checked_state, without_streams
from holdfast.checkpoint.state.tensors import dtype_name, memory_of, pieces_of
from holdfast.checkpoint.stores.storage import Storage, exists, random_hex
from holdfast.contract import object_names
from holdfast.contract.errors import InputError

# The format's own names for the dtypes that it has.
DTYPES = {
    **{f"{ours}{bits}": f"{theirs}{bits}" for ours, theirs in (("float", "F"), ("int", "I")) for bits in (64, 32, 16)},
    **{"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
    **{"int8": "I8", "uint8": "U8", "bool": "BOOL"},
}
_BY_NAME = {theirs: getattr(torch, ours) for ours, theirs in DTYPES.items()}
# The library's own bound; a header is read into memory.
MAX_HEADER_BYTES = 100_000_000
# As the transformers library cuts a model.
FILE_BYTES = 5_000_000_000
INDEX = "model.safetensors.index.json"


def write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor], notes: Mapping[str, str]) -> int:
    """Bytes of its tensors. Create-only: an export must not overwrite what a server reads."""
    header: dict[str, Any] = {"__metadata__": dict(notes)}
    at = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _dtype(name, tensor), "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    # The format asks for tensors that begin at multiples of eight, and readers map them.
    encoded += b" " * (-len(encoded) % 8)
    with path.open("xb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors.values():
            file.write(memory_of(tensor.contiguous()))
    return at


def write_folder(
    folder: Path, tensors: Mapping[str, torch.Tensor], notes: Mapping[str, str], *, file_bytes: int = FILE_BYTES
) -> int:
    """As from_pretrained() reads it: one file, or several and an index."""
    folder.mkdir()
    files = list(_cut(tensors, file_bytes))
    if len(files) == 1:
        return write_safetensors(folder / "model.safetensors", files[0], notes)
    names = [f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
    total = sum(write_safetensors(folder / name, part, notes) for name, part in zip(names, files, strict=True))
    weights = {key: name for name, part in zip(names, files, strict=True) for key in part}
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weights}, indent=1))
    return total


def _cut(tensors: Mapping[str, torch.Tensor], most: int) -> Iterator[dict[str, torch.Tensor]]:
    part: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        more = tensor.numel() * tensor.element_size()
        if part and size + more > most:
            yield part
            part, size = {}, 0
        part[name] = tensor
        size += more
    yield part


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file, or of every file of a folder; mapped, not yet read. Raises InputError."""
    # Every file and not the index: a folder without one, as other tools write it, is read as well.
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    found: dict[str, torch.Tensor] = {}
    for file in files:
        found |= _read_file(file)
    return found


def _read_file(path: Path) -> dict[str, torch.Tensor]:
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        # Bounded by the file: the length is the first thing that a damaged or forged file gets wrong.
        length = int.from_bytes(data[:8], "little")
        if length > min(MAX_HEADER_BYTES, len(data) - 8):
            raise ValueError(f"a header of {length} bytes")
        header: dict[str, Any] = json.loads(bytes(data[8 : 8 + length]))
        body = data[8 + length :]
        return {name: _tensor(entry, body) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RuntimeError) as error:
        raise InputError(
            "file is no safetensors file",
            got=f"{path} ({error})"[:300],
            allowed="a whole file of this format",
            fix="download it again",
        ) from error


def _tensor(entry: dict[str, Any], body: memoryview) -> torch.Tensor:
    low, high = (int(at) for at in entry["data_offsets"])
    dtype: torch.dtype = _BY_NAME[entry["dtype"]]
    if not 0 <= low <= high <= len(body):
        raise ValueError("a tensor lies outside the file")
    if low == high:
        return torch.empty(entry["shape"], dtype=dtype)
    # Cloned where it is not aligned: to view it as its dtype it must begin at a multiple of its size.
    raw = torch.frombuffer(body[low:high], dtype=torch.uint8)
    return (raw if low % dtype.itemsize == 0 else raw.clone()).view(dtype).view(entry["shape"])


def _dtype(name: str, tensor: torch.Tensor) -> str:
    found = DTYPES.get(dtype_name(tensor.dtype))
    if found is None:
        raise InputError(
            f"tensor {name} has a dtype that safetensors does not have",
            got=dtype_name(tensor.dtype),
            allowed=", ".join(DTYPES),
            fix="export other tensors with --keys",
        )
    return found


FORMATS = ("safetensors", "pretrained")
# What such a folder holds in addition to the weights. Weights of the example itself must not go along.
_BESIDE = ("*.json", "*.txt", "*.model", "*.jinja")


def refuse_existing(out: Path) -> None:
    """Raises InputError."""
    if out.exists():
        what = f"{'folder' if out.is_dir() else 'file'} exists"
        raise InputError(what, got=str(out), allowed="a new name", fix="choose another --out")


def export_to(
    to: str, out: Path, tensors: Mapping[str, torch.Tensor], notes: Mapping[str, str], *, like: Path | None
) -> int:
    """Bytes of its tensors. In a folder their names lose the entry they were in. Raises InputError."""
    if to == "safetensors":
        return write_safetensors(out, tensors, notes)
    if like is not None and not (like / "config.json").is_file():
        raise InputError(
            "folder to take the configuration from has none",
            got=str(like),
            allowed="a folder with config.json",
            fix="save one there by model.config.save_pretrained()",
        )
    weights = {key.partition("/")[2] or key: tensor for key, tensor in tensors.items()}
    if len(weights) < len(tensors):
        raise InputError(
            "two entries hold tensors of one name",
            got=f"{len(tensors)} tensors, {len(weights)} names",
            allowed="one entry",
            fix="choose it by --keys model/",
        )
    size = write_folder(out, weights, {"format": "pt", **notes})
    for pattern in _BESIDE if like is not None else ():
        for file in sorted(like.glob(pattern)) if like is not None else ():
            if not file.name.endswith(".index.json"):
                shutil.copy(file, out)
    return size


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
            "this step is there already", got=name, allowed="a new step or run", fix="choose another --run or --step"
        )
    # A resume from it keeps the seed of its own process: those of this one have nothing to do with the file.
    captured = without_streams(capture(state))
    manifest = Manifest(
        run=run, step=step, attempt=random_hex(6), rank=0, world_size=1, shards=(), tensors=(), values=captured.skeleton
    )
    written = upload_now(storage, pieces_of(captured, 0, 1), manifest, Tuning())
    # With the fence: a trainer that still writes this run must not commit a later step of another history.
    return commit(storage, written, state=CommitState(epoch=fence.take(storage, run)), timeout_s=60.0).total_bytes


def _no_state(path: Path, got: str) -> InputError:
    return InputError(
        "file holds no state", got=f"{path}: {got}", allowed="a dict of tensors", fix="save a state_dict() in it"
    )
