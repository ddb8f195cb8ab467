"""Read a folder of torch-checkpointing that one rank wrote: a file of torch.save for each item.

An index is there if a save had a resharder. It is a pickle of plain dicts, read without a single
class. Folders of several ranks need the geometry of its placements, and are refused with the way
around.
"""

import re
from pathlib import Path

from holdfast.checkpoint.interchange.index_unpickler import PLAIN, UnpicklingError, read_index
from holdfast.checkpoint.interchange.source import Source, make_source_error
from holdfast.checkpoint.interchange.torch_source import read_torch_file

METADATA = "metadata.pkl"
_SUFFIX = "_0.pt"
_FILE = re.compile(r".+_(\d+)\.pt")
"""The file of an item, with the rank that wrote it."""


def is_torch_checkpointing(path: Path) -> bool:
    return (path / METADATA).is_file() or bool(_list_ranks(path))


def _list_ranks(path: Path) -> set[int]:
    """Return the ranks whose files are in a folder; empty if it has other files too."""
    ranks: set[int] = set()
    for file in path.glob("*"):
        match = _FILE.fullmatch(file.name)
        if match:
            ranks.add(int(match[1]))
        elif file.name != METADATA:
            return set()
    return ranks


def _read_world_size(path: Path) -> int:
    index = path / METADATA
    if not index.is_file():
        return max(_list_ranks(path)) + 1
    try:
        return int(read_index(index.read_bytes(), PLAIN)["world_size"])
    except (
        UnpicklingError,
        ValueError,
        ArithmeticError,
        EOFError,
        LookupError,
        TypeError,
    ) as error:
        raise make_source_error(index, f"{error}") from error


def read_torch_checkpointing(path: Path, entry: str) -> Source:
    """Return the items of a folder, each as an entry. Raises InputError."""
    del entry  # an item has its own name
    world_size = _read_world_size(path)
    if world_size != 1:
        raise make_source_error(
            path,
            f"{world_size} ranks wrote it",
            "load it there and save the full tensors from one rank, or write DCP",
        )
    source = Source(kind="torch-checkpointing", path=path)
    for file in sorted(path.glob(f"*{_SUFFIX}")):
        name = file.name.removesuffix(_SUFFIX)
        item = read_torch_file(file, name)
        source.parts += item.parts
        source.values |= item.values
    if not source.values:
        raise make_source_error(path, f"no file *{_SUFFIX}")
    return source
