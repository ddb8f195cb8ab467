"""The commits of a run: listing them, reading them, and writing one.

To commit, the coordinator checks that the shards of every rank are stored, then creates COMMIT.json
from a draft, unless a newer trainer has deleted that.
Ranks meet in the storage itself, so a commit needs no trainer to be alive, only the uploaders. A
commit is created once and not replaced. A checkpoint exists if and only if its commit does.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from holdfast.checkpoint.errors import (
    Abandoned,
    AlreadyExists,
    Damaged,
    Fenced,
    NotFound,
    StorageError,
)
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import Commit, Manifest, ManifestDigest, digest_manifest, fence
from holdfast.checkpoint.format.decoding import (
    MAX_COMMIT_BYTES,
    MAX_MANIFEST_BYTES,
    decode_commit,
    parse_manifest,
)
from holdfast.checkpoint.format.validation import check_manifests, check_shards
from holdfast.checkpoint.stores.storage import (
    Stat,
    Storage,
    crc32c,
    exists,
    put_object,
    random_hex,
    read_object,
)
from holdfast.support import object_names
from holdfast.support.errors import InputError
from holdfast.vocabulary.environment import ENV_SOURCE
from holdfast.vocabulary.job_identity import read_source


@dataclass(kw_only=True, slots=True)
class StepObjects:
    """The objects of one step: its commit, and the shards and manifests by attempt."""

    step: int
    commit: Stat | None = None
    attempts: dict[str, list[Stat]] = field(default_factory=dict)


def survey(storage: Storage, run: str) -> dict[int, StepObjects]:
    """List the objects of a run by step."""
    steps: dict[int, StepObjects] = {}
    for stat in storage.list(object_names.checked_run(run)):
        _, _, name = stat.name.partition("/")
        step_part, _, rest = name.partition("/")
        step = object_names.parse_step(step_part)
        # Foreign objects below the run are left alone, and are no error.
        if step is None:
            continue
        entry = steps.setdefault(step, StepObjects(step=step))
        attempt, _, attempt_object = rest.partition("/")
        if attempt == object_names.COMMIT_OBJECT:
            entry.commit = stat
        elif attempt_object:
            attempt_objects = entry.attempts.setdefault(attempt, [])
            attempt_objects.append(stat)
    return steps


def committed_steps(storage: Storage, run: str) -> list[int]:
    """List the steps that have a commit, newest first. The commits are not read.

    `storage` is opened by the URL of the checkpoints.

        from holdfast.checkpoint.stores import open_storage

        newest, *older = committed_steps(open_storage("gs://bucket/runs"), "run-7")
    """
    entries = survey(storage, run).values()
    steps = [entry.step for entry in entries if entry.commit]
    return sorted(steps, reverse=True)


def read_commit(
    storage: Storage,
    run: str,
    step: int,
    *,
    listed: Stat | None = None,
) -> Commit | None:
    """Read the commit of a step; None if there is none that can be read.

    `listed` is the commit's entry in a listing, and spares a request.
    """
    name = object_names.commit_object(run, step)
    try:
        data = read_object(
            storage,
            name,
            limit=MAX_COMMIT_BYTES,
            listed=listed,
        )
        return decode_commit(data, run=run, step=step)
    except (Damaged, EOFError, NotFound, InputError):
        return None


def list_runs(storage: Storage) -> list[str]:
    """List the runs in a store, those without a commit too."""
    # From the names of objects: stores have no folders.
    names: set[str] = set()
    for stat in storage.list(""):
        run, slash, _ = stat.name.partition("/")
        if slash:
            names.add(run)
    return sorted(names)


def select_steps(
    step: int | None,
    committed: list[int],
    run: str,
) -> list[int]:
    """Return the steps to try: only `step`, or all if it is None.

    Raises InputError if `step` is not committed.
    """
    if step is None:
        return committed
    if step not in committed:
        raise InputError(
            f"run {run} has no checkpoint of this step",
            got=str(step),
            allowed=", ".join(map(str, committed[:10])) or "none: the run has no commit",
            fix="choose one of these steps",
        )
    return [step]


FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 1.0


@dataclass(kw_only=True, slots=True)
class CommitState:
    """The commits of a run as its coordinator counts them; the bucket may show fewer."""

    commit_count: int = 0
    keep: int = 0
    """Number of commits that retention leaves; 0 without retention, and then none are counted."""
    epoch: int = 0
    """Number of this start; 0 without a fence."""
    damaged: frozenset[str] = frozenset()
    """Attempts that restore found damaged: a new commit of their step replaces theirs."""


def commit(
    storage: Storage,
    manifest: Manifest,
    *,
    state: CommitState,
    timeout_s: float,
    abandoned: Callable[[float], bool],
) -> Commit:
    """Commit an attempt once every rank has stored its shards. `manifest` is that of this rank.

    `abandoned(seconds)` waits that long and returns whether to give up.

    Raises StorageError if a rank's manifest is missing for `timeout_s`, Damaged if the store holds
    something else than was sent, Abandoned if `abandoned` says so, Fenced if a newer trainer has
    taken the right to commit.
    """
    # A manifest is written after its shards, so manifests of all ranks mean that every shard was
    # sent.
    names = _wait_for_manifests(
        storage,
        manifest,
        timeout_s,
        abandoned,
    )
    # One listing for all objects: a stat for each would be thousands of requests before each
    # commit.
    listing = storage.list(object_names.attempt_prefix(*manifest.attempt_id))
    stored = {stat.name: stat for stat in listing}
    manifests: list[Manifest] = []
    digests: list[ManifestDigest] = []
    total_bytes = 0
    for name in names:
        payload = read_object(
            storage,
            name,
            limit=MAX_MANIFEST_BYTES,
            listed=stored.get(name),
        )
        rank_manifest = _verify_manifest(storage, payload, stored, manifest)
        manifests.append(rank_manifest)
        digests.append(digest_manifest(payload))
        total_bytes += rank_manifest.length
    check_manifests(manifests)
    failpoint("commit.verified")
    record = Commit(
        run=manifest.run,
        step=manifest.step,
        attempt=manifest.attempt,
        world_size=manifest.world_size,
        total_bytes=total_bytes,
        created=int(time.time()),
        manifests=tuple(digests),
        commit_count=min(state.commit_count + 1, state.keep),
        epoch=state.epoch,
        source=read_source(os.environ.get(ENV_SOURCE)),
    )
    if _write(storage, record, state.damaged):
        state.commit_count = record.commit_count
    failpoint("commit.written")
    return record


def _wait_for_manifests(
    storage: Storage,
    manifest: Manifest,
    timeout_s: float,
    abandoned: Callable[[float], bool],
) -> list[str]:
    """Wait until every rank has written its manifest, and return their names by rank."""
    ranks = range(manifest.world_size)
    names: list[str] = []
    for rank in ranks:
        names.append(object_names.manifest_object(*manifest.attempt_id, rank))
    deadline = time.monotonic() + timeout_s
    pause = FIRST_PAUSE_S
    missing = [*ranks]
    missing.remove(manifest.rank)
    while True:
        # Only for the missing ones: each round costs one request per missing rank.
        missing = [rank for rank in missing if not exists(storage, names[rank])]
        if not missing:
            return names
        if time.monotonic() > deadline:
            raise StorageError(f"no manifest of ranks {missing[:8]} after {timeout_s:.0f} s")
        if abandoned(pause):
            raise Abandoned
        pause = min(pause * 1.5, LONGEST_PAUSE_S)


def list_common_objects(storage: Storage, manifest: Manifest) -> dict[str, Stat]:
    """List the objects that checkpoints share, if a manifest names any."""
    if not manifest.common_names:
        return {}
    prefix = object_names.common_prefix(manifest.run)
    return {stat.name: stat for stat in storage.list(prefix)}


def _verify_manifest(
    storage: Storage,
    payload: bytes,
    stored: dict[str, Stat],
    expected: Manifest,
) -> Manifest:
    """Parse a manifest of the attempt of `expected`, and check that its shards are stored.

    Sizes are compared, and checksums if the store keeps them. Raises Damaged.
    """
    manifest = parse_manifest(payload)
    # The object's name proves nothing: bytes of another attempt may have been copied under it.
    same_attempt = manifest.attempt_id == expected.attempt_id
    same_size = manifest.world_size == expected.world_size
    if not same_attempt or not same_size or manifest.rank >= expected.world_size:
        raise Damaged(f"the manifest of rank {manifest.rank} belongs to another attempt")
    if not manifest.common_names <= stored.keys():
        stored |= list_common_objects(storage, manifest)
    check_shards(manifest, stored)
    return manifest


def _write(
    storage: Storage,
    record: Commit,
    damaged: frozenset[str],
) -> bool:
    """Write the commit. Return False if its step has a commit already that may stay.

    Raises Fenced if a newer trainer has taken the right to commit.
    """
    # Never directly under its final name: a trainer may be frozen for an hour between any two
    # lines, and the move of its draft then fails.
    draft = object_names.draft_object(record.run, record.epoch, random_hex(6))
    data = memoryview(bytearray(record.encode()))
    put_object(storage, draft, data, crc32c(data))
    failpoint("commit.drafted")
    try:
        fence.check(storage, record.run, record.epoch)
        return _publish(storage, draft, record, damaged)
    except Fenced:
        with suppress(StorageError):
            storage.delete(draft)
        raise


def _publish(
    storage: Storage,
    draft: str,
    record: Commit,
    damaged: frozenset[str],
) -> bool:
    """Move the draft to the name of the commit, as `_write` describes."""
    name = object_names.commit_object(record.run, record.step)
    try:
        storage.move(draft, name)
        return True
    except NotFound:
        return _confirm_move(storage, record)
    except AlreadyExists:
        present = read_commit(storage, record.run, record.step)
    if present is not None:
        # Our own earlier try, whose answer was lost.
        if present.attempt == record.attempt:
            return True
        is_newer = present.epoch >= record.epoch
        if is_newer and present.attempt not in damaged:
            # Without a fence, the commit of a copied or repeated step may stay. Within one start,
            # the work of the second save would count as safe although it is not stored.
            if record.epoch:
                fence.check(storage, record.run, record.epoch)
                raise StorageError(
                    f"step {record.step} was committed before by this start: its number was used"
                    " twice"
                )
            storage.delete(draft)
            return False
    # The present commit is unreadable, damaged, or of a trainer that this one has superseded. A
    # newer trainer cannot have written it: it would have deleted our draft.
    try:
        storage.move(draft, name, replace=True)
        return True
    except NotFound:
        return _confirm_move(storage, record)


def _confirm_move(storage: Storage, record: Commit) -> bool:
    """Return True if the draft was moved by an earlier try, whose answer was lost.

    Raises Fenced if a newer start has deleted it.
    """
    present = read_commit(storage, record.run, record.step)
    if present is not None and present.attempt == record.attempt:
        return True
    fence.check(storage, record.run, record.epoch)
    raise StorageError(f"step {record.step} was not committed: the draft of its commit was deleted")
