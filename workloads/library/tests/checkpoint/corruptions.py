"""Damage of every kind to a committed checkpoint's files, seeded.

Each kind takes the folder of one checkpoint and spoils it; it returns false where it does not apply.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, Path, random.Random], bool]


def shards(folder: Path) -> list[Path]:
    """Files that hold tensors, ours or DCP's."""
    return sorted(p for p in folder.rglob("*") if p.suffix in (".bin", ".distcp"))


def zero_first_shard(step: Path) -> None:
    shard = shards(step)[0]
    shard.write_bytes(bytes(shard.stat().st_size))


def described(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix == ".json" or p.name == ".metadata")


def bit_flip(folder: Path, other: Path, rng: random.Random) -> bool:
    return _rewrite(rng.choice(shards(folder)), lambda data: _flipped(data, rng))


def flip_in_description(folder: Path, other: Path, rng: random.Random) -> bool:
    return _rewrite(rng.choice(described(folder)), lambda data: _flipped(data, rng))


def zero_hole(folder: Path, other: Path, rng: random.Random) -> bool:
    def holed(data: bytearray) -> bytearray:
        length = rng.randint(1, max(1, len(data) // 4))
        at = rng.randrange(len(data) - length + 1)
        if not any(data[at : at + length]):
            return _flipped(data, rng)
        data[at : at + length] = bytes(length)
        return data

    return _rewrite(rng.choice(shards(folder)), holed)


def truncation(folder: Path, other: Path, rng: random.Random) -> bool:
    return _rewrite(rng.choice(shards(folder)), lambda data: data[: rng.randrange(len(data))])


def missing_shard(folder: Path, other: Path, rng: random.Random) -> bool:
    rng.choice(shards(folder)).unlink()
    return True


def mixed_attempts(folder: Path, other: Path, rng: random.Random) -> bool:
    """A shard of another checkpoint of the same shape in the place of ours."""
    mine, theirs = shards(folder), shards(other)
    index = rng.randrange(len(mine))
    if mine[index].read_bytes() == theirs[index].read_bytes():
        return False
    shutil.copyfile(theirs[index], mine[index])
    return True


def missing_commit(folder: Path, other: Path, rng: random.Random) -> bool:
    _commit(folder).unlink()
    return True


def torn_commit(folder: Path, other: Path, rng: random.Random) -> bool:
    return _rewrite(_commit(folder), lambda data: data[: rng.randrange(len(data))])


def _commit(folder: Path) -> Path:
    return next(p for p in folder.rglob("*") if p.name in ("COMMIT.json", ".metadata"))


def replayed_description(folder: Path, other: Path, rng: random.Random) -> bool:
    """An older checkpoint's description, put in the place of this one's."""
    index = rng.randrange(len(described(folder)))
    shutil.copyfile(described(other)[index], described(folder)[index])
    return True


DAMAGES: dict[str, Damage] = {
    damage.__name__: damage
    for damage in (
        bit_flip,
        flip_in_description,
        zero_hole,
        truncation,
        missing_shard,
        mixed_attempts,
        missing_commit,
        torn_commit,
        replayed_description,
    )
}


def _flipped(data: bytearray, rng: random.Random) -> bytearray:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _rewrite(path: Path, change: Callable[[bytearray], bytearray]) -> bool:
    path.write_bytes(change(bytearray(path.read_bytes())))
    return True
