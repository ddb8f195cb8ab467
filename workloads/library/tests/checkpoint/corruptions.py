"""Damage of every kind to a committed checkpoint's files, seeded.

Each kind takes the folder of one checkpoint and spoils it; it returns false where it does not
apply.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, Path, random.Random], bool]
Change = Callable[[bytearray, random.Random], bytearray]


def shards(folder: Path) -> list[Path]:
    """Files that hold tensors, ours or DCP's."""
    return sorted(p for p in folder.rglob("*") if p.suffix in (".bin", ".distcp"))


def described(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix == ".json" or p.name == ".metadata")


def _commit(folder: Path) -> list[Path]:
    return [next(p for p in folder.rglob("*") if p.name in ("COMMIT.json", ".metadata"))]


def _flipped(data: bytearray, rng: random.Random) -> bytearray:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _holed(data: bytearray, rng: random.Random) -> bytearray:
    length = rng.randint(1, max(1, len(data) // 4))
    at = rng.randrange(len(data) - length + 1)
    if not any(data[at : at + length]):
        return _flipped(data, rng)
    data[at : at + length] = bytes(length)
    return data


def _cut(data: bytearray, rng: random.Random) -> bytearray:
    return data[: rng.randrange(len(data))]


def _rewritten(of: Callable[[Path], list[Path]], change: Change) -> Damage:
    def damage(folder: Path, other: Path, rng: random.Random) -> bool:
        path = rng.choice(of(folder))
        path.write_bytes(change(bytearray(path.read_bytes()), rng))
        return True

    return damage


def _removed(of: Callable[[Path], list[Path]]) -> Damage:
    def damage(folder: Path, other: Path, rng: random.Random) -> bool:
        rng.choice(of(folder)).unlink()
        return True

    return damage


def _replaced(of: Callable[[Path], list[Path]], *, always: bool = False) -> Damage:
    """By that of another checkpoint of the same shape. `always`: it counts where the two are alike,
    too.
    """

    def damage(folder: Path, other: Path, rng: random.Random) -> bool:
        mine = of(folder)
        theirs = of(other)
        index = rng.randrange(len(mine))
        alike = mine[index].read_bytes() == theirs[index].read_bytes()
        shutil.copyfile(theirs[index], mine[index])
        return always or not alike

    return damage


DAMAGES: dict[str, Damage] = {
    "bit_flip": _rewritten(shards, _flipped),
    "flip_in_description": _rewritten(described, _flipped),
    "zero_hole": _rewritten(shards, _holed),
    "truncation": _rewritten(shards, _cut),
    "missing_shard": _removed(shards),
    "mixed_attempts": _replaced(shards),
    "missing_commit": _removed(_commit),
    "torn_commit": _rewritten(_commit, _cut),
    "replayed_description": _replaced(described, always=True),
}
