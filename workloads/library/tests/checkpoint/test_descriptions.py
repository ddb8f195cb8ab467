"""Commits and manifests with a flipped bit are damage. The fuzz tests other malformed ones."""

from collections.abc import Iterator

import pytest

from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.format import Commit, Manifest, Shard, TensorPart, digest_manifest
from holdfast.checkpoint.format.decoding import decode_commit, decode_manifest
from holdfast.checkpoint.format.validation import check_shards
from holdfast.checkpoint.stores.storage import Stat


def make_commit() -> tuple[bytes, bytes, Commit]:
    """Return a commit, the manifest of its only rank, and the decoded commit."""
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
    manifest = Manifest(
        **head,
        rank=0,
        shards=(Shard(bytes=4, crc32c="0" * 8),),
        tensors=(part,),
        values={"w": {"$tensor": "w"}},
    )
    encoded_manifest = manifest.encode()
    commit = Commit(
        **head,
        total_bytes=4,
        created=1,
        manifests=(digest_manifest(encoded_manifest),),
    )
    encoded_commit = commit.encode()
    return (
        encoded_commit,
        encoded_manifest,
        decode_commit(encoded_commit, run="r", step=1),
    )


def flip_bits(data: bytes) -> Iterator[bytes]:
    """Yield `data` with one flipped bit in each of its bytes."""
    for index in range(len(data)):
        damaged = bytearray(data)
        damaged[index] ^= 1 << index % 8
        yield bytes(damaged)


def test_commit_with_a_flipped_bit_is_damage() -> None:
    commit, _, _ = make_commit()
    for damaged in flip_bits(commit):
        with pytest.raises(Damaged):
            decode_commit(damaged, run="r", step=1)


def test_manifest_with_a_flipped_bit_is_damage() -> None:
    _, manifest, commit = make_commit()
    assert decode_manifest(manifest, commit, 0).tensors
    for damaged in flip_bits(manifest):
        with pytest.raises(Damaged):
            decode_manifest(damaged, commit, 0)


def test_missing_or_shorter_shard_is_damage() -> None:
    _, encoded_manifest, commit = make_commit()
    manifest = decode_manifest(encoded_manifest, commit, 0)
    name = manifest.shard_name(0)
    stat = Stat(name=name, bytes=4, modified=0.0)
    check_shards(manifest, {name: stat})
    shorter = Stat(name=name, bytes=3, modified=0.0)
    for stored in ({}, {name: shorter}):
        with pytest.raises(Damaged):
            check_shards(manifest, stored)
