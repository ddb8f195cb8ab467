"""Read what torch.save wrote, without running code of it: a file, or the folder of a DCP save.

A pickle is a program. The file of torch.save is read by PyTorch's weights_only, which refuses what
is not data. DCP's index is a pickle too: it is read by an unpickler that knows the classes of such
an index and nothing else. Tensors are read as fake ones first, which tell where their bytes are.
"""

import io
import logging
import math
import zipfile
from collections import Counter
from collections.abc import Container, Generator, Iterable
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoint.format import Sizes
from holdfast.checkpoint.interchange.index_unpickler import DCP, UnpicklingError, read_index
from holdfast.checkpoint.interchange.source import (
    Source,
    SourcePart,
    make_entry,
    make_source_error,
)
from holdfast.checkpoint.state.tensors import as_dtensor, dtype_name, to_local
from holdfast.checkpoint.state.values import Skeleton, encode_value
from holdfast.support.errors import InputError

DCP_INDEX = ".metadata"
# Values of a training state are small; the index of a million tensors is not.
MAX_VALUE_BYTES = 16 << 20
MAX_INDEX_BYTES = 512 << 20
_UNSAFE = (
    UnpicklingError,
    zipfile.BadZipFile,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


def _load_fake(file: Any, path: Path) -> Any:
    """Return what torch.save wrote with fake tensors. Raises InputError."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode():
            return torch.load(file, weights_only=True, map_location="cpu")
    except _UNSAFE as error:
        first_line = str(error).partition("\n")[0]
        raise make_source_error(
            path,
            f"{type(error).__name__}: {first_line}",
            "save tensors and plain values only, such as model.state_dict(); code in the file is"
            " never run",
        ) from error


def read_torch_file(path: Path, entry: str) -> Source:
    """Return the state in a file of torch.save."""
    state = _load_fake(str(path), path)
    if not isinstance(state, dict):
        raise make_source_error(path, f"a {type(state).__name__}", "save a dict")
    # Many programs save a module's state itself, and not a dict of several states.
    if any(isinstance(value, torch.Tensor) for value in state.values()):
        state = {entry: state}
    source = Source(kind="torch.save", path=path)
    for name, value in state.items():
        source.values[str(name)] = encode_value(
            _make_entry_value(value),
            str(name),
            lambda key, tensor: source.parts.append(_locate(path, key, tensor)),
        )
    return source


def _make_entry_value(value: Any) -> Any:
    """Return the value if an entry of a state can hold it, else a dict that contains it."""
    return value if isinstance(value, dict | list | torch.Tensor) else {"value": value}


def join_by_dots(key: str) -> str:
    """Return a key as other libraries name the tensor."""
    return key.replace("/", ".")


def read_torch_value(
    path: Path,
    key: str,
    sharded_names: Container[str],
) -> tuple[Skeleton, list[SourcePart]]:
    """Return the skeleton of the one value in a file, and the tensors of the rank that wrote it.

    A DTensor is described as a tensor of the shape that its rank held. Raises InputError for one
    whose key, joined by dots, is not in `sharded_names`.
    """
    # A file with DTensors names their classes, which weights_only knows from here on.
    import_module("torch.distributed.tensor")
    parts: list[SourcePart] = []

    def put(name: str, tensor: torch.Tensor) -> None:
        if as_dtensor(tensor) is not None and join_by_dots(name) not in sharded_names:
            raise make_source_error(
                path,
                f"{name} is a part of a tensor, and no index tells which",
                "copy metadata.pkl of the same job's first save into the folder; that is there if"
                " the item has a resharder",
            )
        parts.append(_locate(path, name, to_local(tensor)))

    with _quiet_meshes():
        value = _load_fake(str(path), path)
    return encode_value(_make_entry_value(value), key, put), parts


@contextmanager
def _quiet_meshes() -> Generator[None]:
    """Keep PyTorch from warning that a mesh is read before there are processes to form it."""
    logger = logging.getLogger("torch.distributed.device_mesh")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _locate(
    path: Path,
    key: str,
    tensor: torch.Tensor,
    *,
    base: int = 0,
    shape: Sizes | None = None,
    offset: Sizes | None = None,
) -> SourcePart:
    """Return the place of a fake tensor in its file. `base`: where its archive begins."""
    storage = tensor.untyped_storage()
    start = getattr(storage, "_checkpoint_offset", None)
    if start is None:
        raise make_source_error(path, f"tensor {key} has no place in the file")
    extent = tuple(tensor.shape)
    return SourcePart(
        key=key,
        dtype=dtype_name(tensor.dtype),
        shape=extent if shape is None else shape,
        offset=(0,) * len(extent) if offset is None else offset,
        extent=extent,
        path=path,
        start=base + start + tensor.storage_offset() * tensor.element_size(),
        strides=None if tensor.is_contiguous() else tuple(tensor.stride()),
    )


class _Slice(io.RawIOBase):
    """A range of a file as a file of its own."""

    def __init__(
        self,
        path: Path,
        start: int,
        length: int,
    ) -> None:
        self._file = path.open("rb")
        self._start = start
        self._length = length
        self._position = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {
            io.SEEK_SET: 0,
            io.SEEK_CUR: self._position,
            io.SEEK_END: self._length,
        }[whence]
        self._position = max(0, origin + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        count = max(0, min(len(view), self._length - self._position))
        self._file.seek(self._start + self._position)
        done = self._file.readinto(view[:count])
        self._position += done
        return done

    def close(self) -> None:
        self._file.close()
        super().close()


def is_dcp(path: Path) -> bool:
    return (path / DCP_INDEX).is_file()


def read_dcp(path: Path, entry: str) -> Source:
    """Return the tensors and values of a folder that torch.distributed.checkpoint wrote."""
    index = _read_index(path)
    source = Source(kind="DCP", path=path)
    paths = index.planner_data if isinstance(index.planner_data, dict) else {}
    keys: dict[str, str] = {}
    for name in index.state_dict_metadata:
        keys[name] = _make_key(name, paths.get(name), entry)
    entries: dict[str, dict[str, str]] = {}
    for item, info in index.storage_data.items():
        file = path / info.relative_path
        if file.resolve().parent != path.resolve() or not file.is_file():
            raise make_source_error(path, f"file {info.relative_path} is missing")
        if info.offset < 0 or info.offset + info.length > file.stat().st_size:
            raise make_source_error(path, f"{item.fqn} is outside of {info.relative_path}")
        metadata = index.state_dict_metadata[item.fqn]
        key = keys[item.fqn]
        name, _, rest = key.partition("/")
        # Values other than tensors are pickles of DCP's own: nested states keep their tensors.
        if not hasattr(metadata, "chunks"):
            continue
        entries.setdefault(name, {})[rest] = key
        with io.BufferedReader(_Slice(file, info.offset, info.length)) as archive:
            tensor = _load_fake(archive, file)
        offset = tuple(item.offset or (0,) * len(metadata.size))
        part = _locate(
            file,
            key,
            tensor,
            base=info.offset,
            shape=tuple(metadata.size),
            offset=offset,
        )
        source.parts.append(part)
    _check_complete(path, index.state_dict_metadata, keys, source.parts)
    for name, names in entries.items():
        source.values |= make_entry(name, names)
    return source


def _make_key(name: str, path: Any, entry: str) -> str:
    """Return the key of a tensor: its first level is an entry if the state was nested."""
    if isinstance(path, tuple) and len(path) > 1:
        return f"{path[0]}/{'.'.join(map(str, path[1:]))}"
    return f"{entry}/{name}"


def _read_index(path: Path) -> Any:
    index_path = path / DCP_INDEX
    if index_path.stat().st_size > MAX_INDEX_BYTES:
        raise make_source_error(index_path, f"an index of {index_path.stat().st_size} bytes")
    try:
        index = read_index(index_path.read_bytes(), DCP)
        _ = index.state_dict_metadata.items(), index.storage_data.items(), index.planner_data
    except _UNSAFE as error:
        raise make_source_error(
            index_path, f"{error}", "write it with torch.distributed.checkpoint; code is never run"
        ) from error
    return index


def _check_complete(
    path: Path,
    metadata: dict[str, Any],
    keys: dict[str, str],
    parts: Iterable[SourcePart],
) -> None:
    elements: Counter[str] = Counter()
    for part in parts:
        elements[part.key] += math.prod(part.extent)
    for name, item in metadata.items():
        if not hasattr(item, "chunks"):
            continue
        if elements[keys[name]] < math.prod(item.size):
            raise make_source_error(path, f"tensor {name} is not whole")


def is_torch_file(path: Path) -> bool:
    return path.is_file() and zipfile.is_zipfile(path)


def refuse_old_file(path: Path) -> InputError:
    return make_source_error(
        path,
        "neither safetensors nor an archive of torch.save",
        "torch.save(torch.load(path, weights_only=True), other_path) with the PyTorch"
        " that wrote it",
    )
