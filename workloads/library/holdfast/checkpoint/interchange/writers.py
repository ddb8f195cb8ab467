"""Write the tensors of a checkpoint as other formats do, with bounded memory.

A folder appears under its name only when it is whole: it is written under another one, and renamed.
"""

import io
import json
import math
import shutil
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from holdfast.checkpoint.format import TensorPart
from holdfast.checkpoint.format.dtypes import item_bytes
from holdfast.checkpoint.interchange.verified_reader import VerifiedReader
from holdfast.checkpoint.restore.reader import Opened
from holdfast.checkpoint.restore.tensor_loading import refuse_existing, translate_dtype
from holdfast.checkpoint.state.tensors import get_dtype, view_memory
from holdfast.checkpoint.stores.local import NO_LINKS

FILE_BYTES = 5_000_000_000
_DCP_FILE = "__0_0.distcp"


@contextmanager
def whole_folder(out: Path) -> Generator[Path]:
    """Yield a folder to write to, which gets the name `out` if no error ends the block.

    Raises InputError if `out` exists.
    """
    refuse_existing(out)
    folder = out.with_name(f".{out.name}.partial")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
        refuse_existing(out)
        folder.rename(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_hugging_face(
    out: Path,
    reader: VerifiedReader,
    opened: Opened,
    names: Mapping[str, str],
    *,
    file_bytes: int = FILE_BYTES,
) -> int:
    """Write safetensors of at most `file_bytes` with an index; return the bytes of the tensors.

    `names` are the names to write by the keys of the checkpoint. Raises InputError, Damaged.
    """
    files = _split(opened, names, file_bytes)
    weight_map: dict[str, str] = {}
    total = 0
    with whole_folder(out) as folder:
        for number, keys in enumerate(files, start=1):
            file_name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
            if len(files) == 1:
                file_name = "model.safetensors"
            total += _write_file(folder / file_name, reader, opened, keys, names)
            for key in keys:
                weight_map[names[key]] = file_name
        index = {
            "metadata": {"total_size": total},
            "weight_map": weight_map,
        }
        path = folder / "model.safetensors.index.json"
        path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return total


def write_safetensors(
    out: Path,
    reader: VerifiedReader,
    opened: Opened,
    names: Mapping[str, str],
) -> int:
    """Write one safetensors file; return the bytes of its tensors. Raises InputError, Damaged."""
    refuse_existing(out)
    partial_file = out.with_name(f".{out.name}.partial")
    partial_file.unlink(missing_ok=True)
    try:
        size = _write_file(partial_file, reader, opened, [*names], names)
        # Create-only: an export must not overwrite what a server reads.
        try:
            out.hardlink_to(partial_file)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            refuse_existing(out)
            partial_file.rename(out)
    finally:
        partial_file.unlink(missing_ok=True)
    return size


def count_bytes(opened: Opened, key: str) -> int:
    part = opened.sources[key][0].part
    return math.prod(part.shape) * (item_bytes(part.dtype) or 0)


def _split(
    opened: Opened,
    names: Mapping[str, str],
    file_bytes: int,
) -> list[list[str]]:
    """Return the keys of each file."""
    files: list[list[str]] = [[]]
    filled = 0
    for key in names:
        size = count_bytes(opened, key)
        if files[-1] and filled + size > file_bytes:
            files.append([])
            filled = 0
        files[-1].append(key)
        filled += size
    return files


def _write_file(
    path: Path,
    reader: VerifiedReader,
    opened: Opened,
    keys: list[str],
    names: Mapping[str, str],
) -> int:
    notes = {
        "format": "pt",
        "run": opened.commit.run,
        "step": str(opened.commit.step),
    }
    header: dict[str, object] = {"__metadata__": notes}
    offset = 0
    for key in keys:
        part = opened.sources[key][0].part
        size = count_bytes(opened, key)
        header[names[key]] = {
            "dtype": translate_dtype(names[key], part.dtype),
            "shape": list(part.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    # The format asks for tensors that begin at multiples of eight, and readers map them.
    encoded += b" " * (-len(encoded) % 8)
    with path.open("xb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for key in keys:
            for block in reader.read_blocks(key):
                file.write(view_memory(block))
    return offset


def write_dcp(
    out: Path,
    reader: VerifiedReader,
    opened: Opened,
    names: Mapping[str, str],
) -> int:
    """Write a folder that torch.distributed.checkpoint loads; return the bytes of the tensors.

    A tensor is written in chunks of some rows, which DCP reads one by one. Raises InputError,
    Damaged.
    """
    from torch.distributed.checkpoint import filesystem, metadata, storage

    make_place = filesystem._StorageInfo  # pyright: ignore[reportPrivateUsage]
    tensors: dict[str, metadata.STORAGE_TYPES] = {}
    results: list[storage.WriteResult] = []
    total = 0
    with whole_folder(out) as folder:
        with (folder / _DCP_FILE).open("xb") as file:
            for key, name in names.items():
                part = opened.sources[key][0].part
                chunks: list[metadata.ChunkStorageMetadata] = []
                for offset, block in _list_chunks(reader, key, part):
                    archive = io.BytesIO()
                    torch.save(block, archive)
                    place = make_place(_DCP_FILE, file.tell(), archive.tell())
                    file.write(archive.getbuffer())
                    index = metadata.MetadataIndex(name, torch.Size(offset), len(chunks))
                    result = storage.WriteResult(index, archive.tell(), place)
                    results.append(result)
                    chunk = metadata.ChunkStorageMetadata(torch.Size(offset), block.shape)
                    chunks.append(chunk)
                tensors[name] = metadata.TensorStorageMetadata(
                    properties=metadata.TensorProperties(dtype=get_dtype(part)),
                    size=torch.Size(part.shape),
                    chunks=chunks,
                )
                total += count_bytes(opened, key)
        document = metadata.Metadata(
            state_dict_metadata=tensors,
            planner_data={name: (name,) for name in names.values()},
        )
        filesystem.FileSystemWriter(folder).finish(document, [results])
    return total


def _list_chunks(
    reader: VerifiedReader,
    key: str,
    part: TensorPart,
) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
    """Yield boxes of whole rows of a tensor, with their offsets."""
    origin = (0,) * len(part.shape)
    row = math.prod(part.shape[1:])
    rest = torch.empty(0, dtype=get_dtype(part))
    first = 0
    for block in reader.read_blocks(key):
        # Blocks of one part end within rows: what is left of a row begins the next chunk.
        flat = torch.cat([rest, block.reshape(-1)])
        rows = len(flat) // max(1, row) if part.shape else 0
        if rows and row:
            chunk = flat[: rows * row].reshape(rows, *part.shape[1:])
            yield (first, *origin[1:]), chunk.clone()
            first += rows
            flat = flat[rows * row :]
        rest = flat
    # A scalar, and a tensor without elements, have no rows.
    if not part.shape or not math.prod(part.shape):
        yield origin, rest.reshape(part.shape).clone()
