"""Seeded damage of every kind to the files of a committed checkpoint.

Each kind damages the folder of one checkpoint; it returns False if it changed nothing.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, Path, random.Random], bool]
Change = Callable[[bytearray, random.Random], bytearray]
FileList = Callable[[Path], list[Path]]


_METADATA = (".metadata", "metadata.pkl")
"""Names of the index of DCP and of torch-checkpointing."""


def shards(folder: Path) -> list[Path]:
    """List the files that hold tensors, also those of DCP and torch-checkpointing."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".bin", ".distcp", ".pt"))


def descriptions(folder: Path) -> list[Path]:
    """List the files that describe tensors, also those of DCP and torch-checkpointing."""
    paths: list[Path] = []
    for path in folder.rglob("*"):
        if path.suffix == ".json" or path.name in _METADATA:
            paths.append(path)
    return sorted(paths)


def _commit(folder: Path) -> list[Path]:
    for path in folder.rglob("*"):
        if path.name in ("COMMIT.json", *_METADATA):
            return [path]
    raise AssertionError(f"no commit in {folder}")


def _flip_bit(data: bytearray, rng: random.Random) -> bytearray:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _clear_bytes(data: bytearray, rng: random.Random) -> bytearray:
    length = rng.randint(1, max(1, len(data) // 4))
    start = rng.randrange(len(data) - length + 1)
    end = start + length
    if not any(data[start:end]):
        return _flip_bit(data, rng)
    data[start:end] = bytes(length)
    return data


def _truncate(data: bytearray, rng: random.Random) -> bytearray:
    return data[: rng.randrange(len(data))]


def _rewrite(list_files: FileList, change: Change) -> Damage:
    def damage(
        folder: Path,
        other: Path,
        rng: random.Random,
    ) -> bool:
        path = rng.choice(list_files(folder))
        data = bytearray(path.read_bytes())
        path.write_bytes(change(data, rng))
        return True

    return damage


def _remove(list_files: FileList) -> Damage:
    def damage(
        folder: Path,
        other: Path,
        rng: random.Random,
    ) -> bool:
        rng.choice(list_files(folder)).unlink()
        return True

    return damage


def _replace(list_files: FileList, *, always: bool = False) -> Damage:
    """Replace a file by that of another checkpoint of the same shape.

    `always` counts the damage even if the two files are equal.
    """

    def damage(
        folder: Path,
        other: Path,
        rng: random.Random,
    ) -> bool:
        targets = list_files(folder)
        sources = list_files(other)
        index = rng.randrange(len(targets))
        equal = targets[index].read_bytes() == sources[index].read_bytes()
        shutil.copyfile(sources[index], targets[index])
        return always or not equal

    return damage


DAMAGES: dict[str, Damage] = {
    "bit_flip": _rewrite(shards, _flip_bit),
    "flip_in_description": _rewrite(descriptions, _flip_bit),
    "zero_hole": _rewrite(shards, _clear_bytes),
    "truncation": _rewrite(shards, _truncate),
    "missing_shard": _remove(shards),
    "mixed_attempts": _replace(shards),
    "missing_commit": _remove(_commit),
    "torn_commit": _rewrite(_commit, _truncate),
    "replayed_description": _replace(descriptions, always=True),
}
