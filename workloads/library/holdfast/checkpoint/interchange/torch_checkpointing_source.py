"""Read a folder of torch-checkpointing that one rank wrote: a file of torch.save for each item.

Its metadata is a pickle of plain dicts, read without a single class. Folders of several ranks need
the geometry of its placements, and are refused with the way around.
"""

from pathlib import Path

from holdfast.checkpoint.interchange.index_unpickler import PLAIN, UnpicklingError, read_index
from holdfast.checkpoint.interchange.source import Source, make_source_error
from holdfast.checkpoint.interchange.torch_source import read_torch_file

METADATA = "metadata.pkl"
_SUFFIX = "_0.pt"


def is_torch_checkpointing(path: Path) -> bool:
    return (path / METADATA).is_file()


def read_torch_checkpointing(path: Path, entry: str) -> Source:
    """Return the items of a folder, each as an entry. Raises InputError."""
    del entry  # an item has its own name
    try:
        metadata = read_index((path / METADATA).read_bytes(), PLAIN)
        world_size = metadata["world_size"]
    except (UnpicklingError, ArithmeticError, EOFError, LookupError, TypeError) as error:
        raise make_source_error(path / METADATA, f"{error}") from error
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
