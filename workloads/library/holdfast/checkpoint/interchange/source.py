"""A checkpoint of another format as parts of files: what its tensors are, and where their bytes
are.

A part is read by ranges, however large it is, unless its elements are stored with strides.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoint.format import Sizes
from holdfast.checkpoint.format.dtypes import dtype_of, item_bytes
from holdfast.checkpoint.state.tensors import view_memory
from holdfast.support.errors import InputError

READ_BYTES = 4 << 20
"""Bytes that are read at once where a whole tensor is read through."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcePart:
    """A box of a tensor, and the place of its bytes."""

    key: str
    dtype: str
    shape: Sizes
    """Shape of the whole tensor."""
    offset: Sizes
    extent: Sizes
    path: Path
    start: int
    """Offset of its first element in the file."""
    strides: Sizes | None = None
    """Strides in elements; None: row-major without gaps."""

    @property
    def bytes(self) -> int:
        return math.prod(self.extent) * (item_bytes(self.dtype) or 0)


@dataclass(kw_only=True)
class Source:
    """The tensors of a checkpoint of another format, and its other values."""

    kind: str
    path: Path
    parts: list[SourcePart] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    """Skeletons by entry."""


def read_part(
    part: SourcePart,
    start: int,
    into: memoryview,
) -> None:
    """Fill `into` with the bytes of a part from byte `start` on. Raises EOFError."""
    if part.strides is None:
        _read_file(part.path, part.start + start, into)
        return
    into[:] = gather(part)[start : start + len(into)]


def gather(part: SourcePart) -> memoryview:
    """Return the bytes of a part that is stored with strides, in row-major order.

    The whole part is read, and kept in memory twice meanwhile. Raises EOFError.
    """
    dtype = dtype_of(part.dtype)
    assert dtype is not None
    assert part.strides is not None
    elements = 1
    for size, stride in zip(part.extent, part.strides, strict=True):
        elements += (size - 1) * stride
    memory = torch.empty(elements, dtype=dtype)
    _read_file(part.path, part.start, view_memory(memory))
    return view_memory(memory.as_strided(part.extent, part.strides).contiguous())


def _read_file(
    path: Path,
    start: int,
    into: memoryview,
) -> None:
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        done = 0
        while done < len(into):
            count = file.readinto(into[done:])
            if not count:
                raise EOFError(f"{path} ends {len(into) - done} bytes early")
            done += count


def make_entry(name: str, keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the skeleton of a module's entry: tensors by their names in it."""
    pairs = [[key, {"$tensor": tensor_key}] for key, tensor_key in keys.items()]
    return {name: {"$ordered": pairs}}


def make_source_error(
    path: Path,
    got: str,
    fix: str = "export it again, or copy it whole",
) -> InputError:
    return InputError(
        f"{path} cannot be read as a checkpoint",
        got=got[:300],
        allowed="a whole checkpoint: DCP, sharded safetensors, or a file of torch.save",
        fix=fix,
    )
