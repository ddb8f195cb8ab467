"""Committing: the coordinator sees every rank's shards in the storage, then writes COMMIT.json, create-only.

Ranks meet in the storage itself, so a commit needs no trainer to be alive, only the uploaders.
A checkpoint exists if and only if its commit does.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.checkpoint import epochs
from holdfast.checkpoint.checksum import crc32c
from holdfast.checkpoint.decoding import MAX_COMMIT_BYTES, MAX_MANIFEST_BYTES, decode_commit, parse_manifest
from holdfast.checkpoint.errors import Abandoned, AlreadyExists, Damaged, NotFound, StorageError
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import Commit, Manifest, digest_of
from holdfast.checkpoint.skeleton import NOTES_KEY
from holdfast.checkpoint.soundness import check_manifests, check_stored
from holdfast.checkpoint.storage import Stat, Storage, read_object
from holdfast.contract import object_names
from holdfast.contract.errors import InputError

FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 1.0


@dataclass(kw_only=True, slots=True)
class Series:
    """The commits of a run, as its coordinator has counted them and not as the bucket shows them."""

    standing: int = 0
    keep: int = 0
    """How many retention leaves; 0: nobody retains, nobody counts."""
    epoch: int = 0
    """Number of this start; 0: unfenced."""
    damaged: frozenset[str] = frozenset()
    """Attempts that restore found damaged: a commit by one of them gives way to a new one."""


def commit(
    storage: Storage,
    own: Manifest,
    *,
    series: Series,
    timeout_s: float,
    abandoned: Callable[[float], bool],
) -> Commit:
    """`abandoned(seconds)` waits that long and returns whether to give up.

    Raises StorageError when a rank's manifest stays away for `timeout_s`, Damaged when the store holds something
    else than was sent, Abandoned when asked to give up, Fenced when a newer trainer has the right to commit."""
    # A manifest is written after its shards, so manifests of all ranks mean that every shard was sent.
    written = _wait_for_manifests(storage, own, timeout_s, abandoned)
    payloads = [
        read_object(storage, object_names.manifest_object(*_id(own), rank), limit=MAX_MANIFEST_BYTES)
        for rank in written
    ]
    # One listing for all shards: a stat for each would be thousands of requests in the commit's way.
    stored = {found.name: found for found in storage.list(object_names.attempt_prefix(*_id(own)))}
    manifests = [_verified(stored, own, payload, written) for payload in payloads]
    check_manifests(manifests)
    failpoint("commit.verified")
    record = Commit(
        run=own.run,
        step=own.step,
        attempt=own.attempt,
        world_size=own.world_size,
        total_bytes=sum(m.length for m in manifests),
        created=int(time.time()),
        manifests=tuple(digest_of(payload) for payload in payloads),
        standing=min(series.standing + 1, series.keep),
        epoch=series.epoch,
        metric=manifests[0].values.get(NOTES_KEY, {}).get("metric"),
    )
    # As late as can be: a trainer that was frozen for an hour wakes up between any two lines.
    epochs.check(storage, own.run, series.epoch)
    if _write(storage, record, series.damaged):
        series.standing = record.standing
    failpoint("commit.written")
    return record


def _id(own: Manifest) -> tuple[str, int, str]:
    return own.run, own.step, own.attempt


def _wait_for_manifests(
    storage: Storage, own: Manifest, timeout_s: float, abandoned: Callable[[float], bool]
) -> list[int]:
    """Ranks, once all of them have written theirs."""
    wanted = {object_names.manifest_object(*_id(own), rank): rank for rank in range(own.world_size)}
    deadline = time.monotonic() + timeout_s
    pause = FIRST_PAUSE_S
    missing = set(wanted)
    while True:
        # Only what was missing is asked for again: each round costs one request for a rank.
        missing = {name for name in missing if not _exists(storage, name)}
        if not missing:
            return list(wanted.values())
        if time.monotonic() > deadline:
            ranks = sorted(wanted[name] for name in missing)
            raise StorageError(f"no manifest of ranks {ranks[:8]} after {timeout_s:.0f} s")
        if abandoned(pause):
            raise Abandoned
        pause = min(pause * 1.5, LONGEST_PAUSE_S)


def _exists(storage: Storage, name: str) -> bool:
    try:
        storage.stat(name)
    except NotFound:
        return False
    return True


def _verified(stored: dict[str, Stat], own: Manifest, payload: bytes, ranks: list[int]) -> Manifest:
    """The manifest, if every shard it lists is there with its size (and checksum, where the store keeps one)."""
    manifest = parse_manifest(payload)
    # The object's name proves nothing: bytes of another attempt may have been copied under it.
    if (*_id(manifest), manifest.world_size) != (*_id(own), own.world_size) or manifest.rank not in ranks:
        raise Damaged(f"the manifest of rank {manifest.rank} belongs to another attempt")
    check_stored(manifest, stored)
    return manifest


def _write(storage: Storage, record: Commit, damaged: frozenset[str]) -> bool:
    """False: this step has a commit already, and it may stay."""
    name = object_names.commit_object(record.run, record.step)
    data = bytearray(record.encode())
    checksum = crc32c(memoryview(data))
    try:
        storage.put(name, memoryview(data), checksum)
    except AlreadyExists:
        # A put whose answer was lost ends here too: then the commit that stands is our own.
        holder = _committed(storage, record)
        if holder is not None and holder.attempt == record.attempt:
            return True  # our own earlier try, whose answer was lost
        if holder is not None and holder.attempt not in damaged and holder.epoch >= record.epoch:
            return _stands(record)
        # What stands there is unreadable, damaged, or of a trainer that this one has superseded.
        # A kill between these two leaves the step without a commit, and restore takes the one before.
        storage.delete(name)
        storage.put(name, memoryview(data), checksum)
    return True


def _stands(record: Commit) -> bool:
    if record.epoch:
        raise StorageError(f"step {record.step} was committed before by this very start: its number was used twice")
    return False


def _committed(storage: Storage, record: Commit) -> Commit | None:
    """The commit that stands at this step; None where it cannot be read."""
    try:
        data = read_object(storage, object_names.commit_object(record.run, record.step), limit=MAX_COMMIT_BYTES)
        return decode_commit(data, run=record.run, step=record.step)
    except (Damaged, EOFError, NotFound, InputError):
        return None
