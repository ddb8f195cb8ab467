"""Where items come from: the files of a folder. Lazily, so that millions need no memory."""

import os
from collections.abc import Iterator
from pathlib import Path

from infra.contract.errors import InputError
from workloads.inference.items import Item, checked_item, require_size


def folder_items(job: str, root: Path, pattern: str = "*") -> Iterator[Item]:
    """Every file below `root` whose name matches, in the order of paths; its id is its path below `root`."""
    if not root.is_dir():
        raise InputError("the source is no folder", got=root, allowed="a folder of files", fix="check --source")
    for path in _walk(root, pattern):
        # A link could lead out of the folder: what it names was not given to us.
        if path.is_symlink() or not path.is_file():
            continue
        require_size(path.name, path.stat().st_size, source=path)  # before it is read
        yield checked_item(job, path.relative_to(root).as_posix(), path.read_bytes(), source=path)


def _walk(folder: Path, pattern: str) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), pattern)
        elif Path(entry.name).match(pattern):
            yield Path(entry.path)
