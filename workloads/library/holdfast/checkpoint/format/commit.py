"""Committing: the coordinator sees every rank's shards in the storage, then writes COMMIT.json, create-only.

Ranks meet in the storage itself, so a commit needs no trainer to be alive, only the uploaders.
A checkpoint exists if and only if its commit does.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.checkpoint.errors import Abandoned, AlreadyExists, Damaged, StorageError
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import fence
from holdfast.checkpoint.format.catalogue import read_commit
from holdfast.checkpoint.format.decoding import MAX_MANIFEST_BYTES, parse_manifest
from holdfast.checkpoint.format.records import Commit, Manifest, digest_of
from holdfast.checkpoint.format.skeleton import NOTES_KEY
from holdfast.checkpoint.format.soundness import check_manifests, check_stored
from holdfast.checkpoint.stores.storage import Stat, Storage, crc32c, exists, read_object
from holdfast.contract import object_names

FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 1.0


@dataclass(kw_only=True, slots=True)
class CommitState:
    """The commits of a run, as its coordinator has counted them and not as the bucket shows them."""

    commit_count: int = 0
    keep: int = 0
    """How many retention leaves; 0: no retention, so no count."""
    epoch: int = 0
    """Number of this start; 0: unfenced."""
    damaged: frozenset[str] = frozenset()
    """Attempts that restore found damaged: a commit by one of them gives way to a new one."""


def _never(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def commit(
    storage: Storage,
    own: Manifest,
    *,
    state: CommitState,
    timeout_s: float,
    abandoned: Callable[[float], bool] = _never,
) -> Commit:
    """`abandoned(seconds)` waits that long and returns whether to give up.

    Raises StorageError when a rank's manifest is missing for `timeout_s`, Damaged when the store holds something
    else than was sent, Abandoned when asked to give up, Fenced when a newer trainer has the right to commit."""
    # A manifest is written after its shards, so manifests of all ranks mean that every shard was sent.
    names = _wait_for_manifests(storage, own, timeout_s, abandoned)
    payloads = [read_object(storage, name, limit=MAX_MANIFEST_BYTES) for name in names]
    # One listing for all shards: a stat for each would be thousands of requests in the commit's way.
    stored = {found.name: found for found in storage.list(object_names.attempt_prefix(*own.attempt_id))}
    manifests = [_verified(stored, own, payload) for payload in payloads]
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
        commit_count=min(state.commit_count + 1, state.keep),
        epoch=state.epoch,
        metric=manifests[0].values.get(NOTES_KEY, {}).get("metric"),
    )
    # As late as can be: a trainer that was frozen for an hour wakes up between any two lines.
    fence.check(storage, own.run, state.epoch)
    if _write(storage, record, state.damaged):
        state.commit_count = record.commit_count
    failpoint("commit.written")
    return record


def _wait_for_manifests(
    storage: Storage, own: Manifest, timeout_s: float, abandoned: Callable[[float], bool]
) -> list[str]:
    """Their names by rank, once all ranks have written theirs."""
    names = [object_names.manifest_object(*own.attempt_id, rank) for rank in range(own.world_size)]
    deadline = time.monotonic() + timeout_s
    pause = FIRST_PAUSE_S
    missing = list(range(own.world_size))
    while True:
        # Only what was missing is asked for again: each round costs one request for a rank.
        missing = [rank for rank in missing if not exists(storage, names[rank])]
        if not missing:
            return names
        if time.monotonic() > deadline:
            raise StorageError(f"no manifest of ranks {missing[:8]} after {timeout_s:.0f} s")
        if abandoned(pause):
            raise Abandoned
        pause = min(pause * 1.5, LONGEST_PAUSE_S)


def _verified(stored: dict[str, Stat], own: Manifest, payload: bytes) -> Manifest:
    """The manifest, if every shard it lists is there with its size (and checksum, where the store keeps one)."""
    manifest = parse_manifest(payload)
    # The object's name proves nothing: bytes of another attempt may have been copied under it.
    alike = (*manifest.attempt_id, manifest.world_size) == (*own.attempt_id, own.world_size)
    if not alike or manifest.rank >= own.world_size:
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
        holder = read_commit(storage, record.run, record.step)
        if holder is not None and holder.attempt == record.attempt:
            return True  # our own earlier try, whose answer was lost
        if holder is not None and holder.attempt not in damaged and holder.epoch >= record.epoch:
            # A copied or repeated step may stay; of one start, the work of the second save would count as safe.
            if record.epoch:
                raise StorageError(
                    f"step {record.step} was committed before by this very start: its number was used twice"
                ) from None
            return False
        # What is there is unreadable, damaged, or of a trainer that this one has superseded.
        # A kill between these two leaves the step without a commit, and restore takes the one before.
        storage.delete(name)
        storage.put(name, memoryview(data), checksum)
    return True
