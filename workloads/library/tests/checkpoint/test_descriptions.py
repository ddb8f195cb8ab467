"""Commits and manifests with a bit flipped are damage. The fuzz has others that no writer of ours
wrote.
"""

from collections.abc import Iterator

import pytest

from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.format import Commit, Manifest, Shard, TensorPart, digest_of
from holdfast.checkpoint.format.decoding import decode_commit, decode_manifest
from holdfast.checkpoint.format.soundness import check_stored
from holdfast.checkpoint.stores.storage import Stat


def described() -> tuple[bytes, bytes, Commit]:
    """A commit, the manifest of its only rank, and the commit read back."""
    part = TensorPart(
        key="w",
        dtype="uint8",
        shape=(4,),
        offset=(0,),
        extent=(4,),
        at=0,
        bytes=4,
    )
    head = {
        "run": "r",
        "step": 1,
        "attempt": "0" * 12,
        "world_size": 1,
    }
    own = Manifest(
        **head,
        rank=0,
        shards=(Shard(bytes=4, crc32c="0" * 8),),
        tensors=(part,),
        values={"w": {"$tensor": "w"}},
    )
    made = Commit(
        **head,
        total_bytes=4,
        created=1,
        manifests=(digest_of(own.encode()),),
    )
    return made.encode(), own.encode(), decode_commit(made.encode(), run="r", step=1)


def flipped(data: bytes) -> Iterator[bytes]:
    return (data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(len(data)))


def test_no_flipped_bit_of_a_commit_is_read() -> None:
    commit, _, _ = described()
    for spoilt in flipped(commit):
        with pytest.raises(Damaged):
            decode_commit(spoilt, run="r", step=1)


def test_no_flipped_bit_of_a_manifest_is_read() -> None:
    _, manifest, commit = described()
    assert decode_manifest(manifest, commit, 0).tensors
    for spoilt in flipped(manifest):
        with pytest.raises(Damaged):
            decode_manifest(spoilt, commit, 0)


def test_a_shard_that_is_not_stored_is_damage() -> None:
    _, manifest, commit = described()
    own = decode_manifest(manifest, commit, 0)
    name = own.shard_name(0)
    check_stored(own, {name: Stat(name=name, bytes=4, modified=0.0)})
    for stored in ({}, {name: Stat(name=name, bytes=3, modified=0.0)}):
        with pytest.raises(Damaged):
            check_stored(own, stored)
