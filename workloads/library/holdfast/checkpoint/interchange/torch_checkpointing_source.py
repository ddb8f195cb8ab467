"""Read a folder of torch-checkpointing: a file for each item and rank.

Where an index says which part of a tensor a rank holds, the parts make up the whole tensor. All
else must be the same on every rank that has it, which is verified: the library itself takes the
first rank's, and the others would be lost without a word.
"""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.checkpoint.format import Sizes
from holdfast.checkpoint.format.dtypes import item_bytes
from holdfast.checkpoint.interchange.safetensors_source import read_safetensors
from holdfast.checkpoint.interchange.source import (
    READ_BYTES,
    Source,
    SourcePart,
    make_source_error,
    read_part,
)
from holdfast.checkpoint.interchange.torch_checkpointing_index import (
    METADATA,
    SAFETENSORS,
    TORCH,
    Index,
    RankFile,
    Sharding,
    read_rank_index,
)
from holdfast.checkpoint.interchange.torch_source import join_by_dots, read_torch_value
from holdfast.checkpoint.state.sharding import Interval
from holdfast.support.errors import InputError

_FILE = re.compile(r"(.+)_(\d+)\.pt")
"""The file of an item, with the rank that wrote it."""


def is_torch_checkpointing(path: Path) -> bool:
    return (path / METADATA).is_file() or bool(_list_items(path))


def _list_items(path: Path) -> dict[str, set[int]]:
    """Return the ranks that wrote each item; empty if the folder has files of another kind."""
    has_index = (path / METADATA).is_file()
    items: dict[str, set[int]] = {}
    for file in path.glob("*"):
        match = _FILE.fullmatch(file.name)
        if match:
            items.setdefault(match[1], set()).add(int(match[2]))
        elif not has_index:
            return {}
    return items


def read_torch_checkpointing(path: Path, entry: str) -> Source:
    """Return the items of a folder, each as an entry. Raises InputError."""
    del entry  # an item has its own name
    items = _list_items(path)
    if (path / METADATA).is_file():
        index = read_rank_index(path)
    else:
        index = _make_index(path, items)
    source = Source(kind="torch-checkpointing", path=path)
    unread = {file for file in path.rglob("*") if file.is_file()} - {path / METADATA}
    for item in sorted(items.keys() | index.files.keys()):
        files = _list_files(path, item, index)
        _read_item(source, item, files, index)
        unread.difference_update(path / file.name for file in files)
    if not source.values:
        raise make_source_error(path, f"no file ITEM_RANK.pt beside {METADATA}")
    if unread:
        name = min(unread).relative_to(path)
        raise make_source_error(
            path,
            f"file {name} belongs to no item of {METADATA}",
            f"import a copy of the folder without {name}",
        )
    return source


def _make_index(path: Path, items: dict[str, set[int]]) -> Index:
    """Return what the names of the files tell. Raises InputError if ranks are missing."""
    world_size = 1 + max(max(ranks) for ranks in items.values())
    for item, ranks in items.items():
        missing = sorted(set(range(world_size)) - ranks)
        if missing:
            raise make_source_error(
                path,
                f"file {item}_{missing[0]}.pt is missing, beside those of ranks"
                f" {', '.join(map(str, sorted(ranks)))}",
                f"copy the files of all ranks; or if these are not ranks, import one file:"
                f" {path / item}_{max(ranks)}.pt",
            )
    return Index(world_size=world_size)


def _list_files(path: Path, item: str, index: Index) -> list[RankFile]:
    """Return the files of an item by rank. Raises InputError if one is missing."""
    files: list[RankFile] = []
    for rank in range(index.world_size):
        file = index.files.get(item, {}).get(rank, RankFile(name=f"{item}_{rank}.pt"))
        location = path / file.name
        # A name from a file that anybody may have written.
        if not location.resolve().is_relative_to(path.resolve()):
            raise make_source_error(path, f"file {file.name!r} is outside of the folder")
        if not location.is_file():
            raise make_source_error(path, f"file {file.name} is missing", f"copy it into {path}")
        files.append(file)
    return files


def _read_item(
    source: Source,
    item: str,
    files: Sequence[RankFile],
    index: Index,
) -> None:
    """Add an item to a source, put together from the files of all ranks."""
    path = source.path
    parts_by_key: dict[str, dict[int, SourcePart]] = {}
    skeleton: Any = None
    for rank, file in enumerate(files):
        rank_skeleton, parts = _read_file(path, file, item, index)
        skeleton = rank_skeleton if rank == 0 else _merge(path, item, skeleton, rank_skeleton)
        for part in parts:
            parts_by_key.setdefault(part.key, {})[rank] = part
    for key, parts in parts_by_key.items():
        shardings = index.shardings.get(join_by_dots(key), [])
        if all(sharding.is_replicated() for sharding in shardings):
            source.parts.append(_take_replica(path, parts, shardings))
        else:
            source.parts += _assemble(path, key, parts, shardings)
    source.values[item] = skeleton


def _read_file(
    path: Path,
    file: RankFile,
    item: str,
    index: Index,
) -> tuple[Any, Sequence[SourcePart]]:
    """Return the skeleton of what a rank wrote of an item, and its tensors."""
    location = path / file.name
    if file.serialization == SAFETENSORS:
        tensors = read_safetensors(location, item)
        return tensors.values[item], tensors.parts
    if file.serialization != TORCH:
        raise make_source_error(
            path,
            f"{file.name} is written by {file.serialization}",
            f"import a copy of the folder without {file.name}",
        )
    return read_torch_value(location, item, index.shardings)


def _merge(
    path: Path,
    key: str,
    first: Any,
    second: Any,
) -> Any:
    """Return the union of two ranks' skeletons: dicts may have other keys on other ranks.

    Raises InputError for values that differ.
    """
    if first == second:
        return first
    mark = _get_mark(first)
    if mark not in ("$map", "$ordered") or _get_mark(second) != mark:
        raise _make_difference_error(path, key)
    merged: dict[Any, Any] = dict(first[mark])
    for name, value in second[mark]:
        merged[name] = _merge(path, f"{key}/{name}", merged.get(name, value), value)
    return {mark: [[name, value] for name, value in merged.items()]}


def _get_mark(skeleton: Any) -> str | None:
    """Return the type of a container in a skeleton, such as `$map`."""
    return next(iter(skeleton)) if isinstance(skeleton, dict) else None


def _make_difference_error(path: Path, key: str) -> InputError:
    item = key.partition("/")[0]
    return make_source_error(
        path,
        f"ranks hold different values of {key}, and no index says how they fit together",
        f"import a copy of the folder without {item}_*.pt, or save it with a resharder",
    )


def _take_replica(
    path: Path,
    parts: dict[int, SourcePart],
    shardings: Sequence[Sharding],
) -> SourcePart:
    """Return the tensor of the first rank. Raises InputError if another rank's differs."""
    first, *replicas = parts.values()
    for sharding in shardings:
        if first.shape != sharding.shape:
            raise _make_shape_error(path, min(parts), first, sharding.shape)
    for replica in replicas:
        if not _are_equal(first, replica):
            raise _make_difference_error(path, first.key)
    return first


def _are_equal(first: SourcePart, second: SourcePart) -> bool:
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    for start in range(0, first.bytes, READ_BYTES):
        length = min(READ_BYTES, first.bytes - start)
        blocks = bytearray(length), bytearray(length)
        try:
            read_part(first, start, memoryview(blocks[0]))
            read_part(second, start, memoryview(blocks[1]))
        except EOFError as error:
            raise make_source_error(first.path.parent, str(error)) from error
        if blocks[0] != blocks[1]:
            return False
    return True


def _assemble(
    path: Path,
    key: str,
    parts: dict[int, SourcePart],
    shardings: Sequence[Sharding],
) -> Iterator[SourcePart]:
    """Yield the boxes of a tensor, each from the first rank that holds it."""
    places: set[tuple[Sizes, Sizes]] = set()
    for sharding in shardings:
        for rank in sharding.ranks:
            part = parts.get(rank)
            if part is None:
                raise make_source_error(path, f"rank {rank} has no part of tensor {key}")
            axes = sharding.list_intervals(rank)
            lengths = tuple(sum(interval[2] for interval in axis) for axis in axes)
            if lengths != part.extent:
                raise _make_shape_error(path, rank, part, lengths)
            for intervals in itertools.product(*axes):
                box = _cut(part, sharding, intervals)
                place = (box.offset, box.extent)
                is_empty = not box.bytes and math.prod(sharding.shape)
                if not is_empty and place not in places:
                    places.add(place)
                    yield box


def _make_shape_error(
    path: Path,
    rank: int,
    part: SourcePart,
    extent: Sizes,
) -> InputError:
    return make_source_error(
        path,
        f"rank {rank} has {list(part.extent)} of tensor {part.key}, and {METADATA} says"
        f" {list(extent)}",
    )


def _cut(
    part: SourcePart,
    sharding: Sharding,
    intervals: Sequence[Interval],
) -> SourcePart:
    """Return a box of a rank's tensor as a part of the whole one."""
    strides = part.strides or _row_major(part.extent)
    start = part.start
    extent: list[int] = []
    offset: list[int] = []
    for stride, (local_start, whole_start, length) in zip(strides, intervals, strict=True):
        start += local_start * stride * (item_bytes(part.dtype) or 0)
        extent.append(length)
        offset.append(whole_start)
    is_whole = tuple(extent) == part.extent
    return replace(
        part,
        shape=sharding.shape,
        offset=tuple(offset),
        extent=tuple(extent),
        start=start,
        strides=part.strides if is_whole else strides,
    )


def _row_major(extent: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(extent):
        strides.insert(0, step)
        step *= size
    return tuple(strides)
