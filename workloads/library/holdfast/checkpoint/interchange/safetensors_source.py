"""Read safetensors: one file, or those that an index names, as Hugging Face writes them."""

import json
import math
from pathlib import Path
from typing import Any

from holdfast.checkpoint.format.dtypes import item_bytes
from holdfast.checkpoint.interchange.source import (
    Source,
    SourcePart,
    make_entry,
    make_source_error,
)
from holdfast.checkpoint.restore.tensor_loading import DTYPES

INDEX_SUFFIX = ".safetensors.index.json"
SUFFIX = ".safetensors"
# The limit of the format's own library.
MAX_HEADER_BYTES = 100_000_000
_NAMES = {name: dtype for dtype, name in DTYPES.items()}


def is_safetensors(path: Path) -> bool:
    if path.is_file():
        return path.name.endswith((SUFFIX, INDEX_SUFFIX))
    patterns = (f"*{SUFFIX}", f"*{INDEX_SUFFIX}")
    return any(any(path.glob(pattern)) for pattern in patterns)


def read_safetensors(path: Path, entry: str) -> Source:
    """Return the tensors of a file or a folder. Raises InputError for one that is not whole."""
    files, weight_map = _list_files(path)
    places: dict[str, SourcePart] = {}
    for file in files:
        for part in _read_header(file, entry):
            if part.key in places:
                raise make_source_error(
                    path,
                    f"tensor {part.key} is in {places[part.key].path.name} and in {file.name}",
                    "keep one of the two files, or import them into two runs",
                )
            places[part.key] = part
    indexed_places: dict[str, SourcePart] = {}
    for name, file_name in weight_map.items():
        key = f"{entry}/{name}"
        part = places.get(key)
        if part is None or part.path.name != file_name:
            raise make_source_error(path, f"the index has tensor {name} in {file_name}: not there")
        indexed_places[key] = part
    if weight_map:
        places = indexed_places
    keys = {key.removeprefix(f"{entry}/"): key for key in places}
    return Source(
        kind="safetensors",
        path=path,
        parts=[*places.values()],
        values=make_entry(entry, keys),
    )


def _list_files(path: Path) -> tuple[list[Path], dict[str, str]]:
    """Return the files to read, and the file's name by tensor if an index names them."""
    if path.is_file() and not path.name.endswith(INDEX_SUFFIX):
        return [path], {}
    if path.is_file():
        folder = path.parent
        indexes = [path]
    else:
        folder = path if path.is_dir() else path.parent
        indexes = sorted(folder.glob(f"*{INDEX_SUFFIX}"))
    if not indexes:
        return sorted(folder.glob(f"*{SUFFIX}")), {}
    if len(indexes) > 1:
        names = ", ".join(index.name for index in indexes)
        raise make_source_error(path, f"several indexes: {names}", "name one of them")
    try:
        weight_map: Any = json.loads(indexes[0].read_bytes())["weight_map"]
        file_names = sorted(set(weight_map.values()))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise make_source_error(indexes[0], f"no weight_map: {error!r}") from error
    files: list[Path] = []
    for name in file_names:
        # A name from a file that anybody may have written.
        if not isinstance(name, str) or Path(name).name != name:
            raise make_source_error(indexes[0], f"file {name!r} is outside of the folder")
        if not (folder / name).is_file():
            raise make_source_error(
                indexes[0], f"file {name} is missing", f"copy {name} into {folder}"
            )
        files.append(folder / name)
    return files, weight_map


def _read_header(path: Path, entry: str) -> list[SourcePart]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        # Compared before it is read: the number is the file's claim.
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise make_source_error(path, f"a header of {length} bytes in a file of {size}")
        encoded = file.read(length)
    try:
        header: Any = json.loads(encoded, object_pairs_hook=_refuse_duplicates)
        header.pop("__metadata__", None)
        return [
            _make_part(path, entry, name, tensor, 8 + length) for name, tensor in header.items()
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise make_source_error(path, f"a header that is malformed: {error}") from error


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items = dict(pairs)
    if len(items) < len(pairs):
        raise ValueError("two tensors have one name")
    return items


def _make_part(
    path: Path,
    entry: str,
    name: str,
    tensor: Any,
    data_start: int,
) -> SourcePart:
    dtype = _NAMES.get(tensor["dtype"])
    if dtype is None:
        raise ValueError(f"tensor {name} has dtype {tensor['dtype']}")
    shape = tuple(tensor["shape"])
    start, end = tensor["data_offsets"]
    for size in (*shape, start, end):
        if type(size) is not int or size < 0:
            raise ValueError(f"tensor {name} has sizes that are no numbers")
    length = math.prod(shape) * (item_bytes(dtype) or 0)
    file_bytes = path.stat().st_size
    if end - start != length or data_start + end > file_bytes:
        raise ValueError(f"tensor {name} has {length} bytes, its place holds others")
    return SourcePart(
        key=f"{entry}/{name}",
        dtype=dtype,
        shape=shape,
        offset=(0,) * len(shape),
        extent=shape,
        path=path,
        start=data_start + start,
    )
