"""What a run has committed, and the commit itself: the coordinator sees every rank's shards, then
writes COMMIT.json.

Ranks meet in the storage itself, so a commit needs no trainer to be alive, only the uploaders. It
is created once and never replaced. A checkpoint exists if and only if its commit does.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.checkpoint.errors import Abandoned, AlreadyExists, Damaged, NotFound, StorageError
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import Commit, Manifest, digest_of, fence
from holdfast.checkpoint.format.decoding import (
    MAX_COMMIT_BYTES,
    MAX_MANIFEST_BYTES,
    decode_commit,
    parse_manifest,
)
from holdfast.checkpoint.format.soundness import check_manifests, check_stored
from holdfast.checkpoint.stores.storage import Stat, Storage, exists, put_new, read_object
from holdfast.support import object_names
from holdfast.support.errors import InputError


@dataclass(kw_only=True, slots=True)
class StepObjects:
    step: int
    commit: Stat | None = None
    attempts: dict[str, list[Stat]] = field(default_factory=dict[str, list[Stat]])


def survey(storage: Storage, run: str) -> dict[int, StepObjects]:
    steps: dict[int, StepObjects] = {}
    for found in storage.list(object_names.checked_run(run)):
        _, step_part, *rest = [*found.name.split("/"), "", ""]
        step = object_names.parse_step(step_part)
        # Foreign objects below the run are left alone, and are no error.
        if step is None:
            continue
        entry = steps.setdefault(step, StepObjects(step=step))
        if rest[0] == object_names.COMMIT_OBJECT:
            entry.commit = found
        elif rest[1]:
            entry.attempts.setdefault(rest[0], []).append(found)
    return steps


def committed_steps(storage: Storage, run: str) -> list[int]:
    """Newest first."""
    # A listing only proposes: whether a commit is one shows when it is read.
    return sorted((s.step for s in survey(storage, run).values() if s.commit), reverse=True)


def read_commit(
    storage: Storage,
    run: str,
    step: int,
    *,
    listed: Stat | None = None,
) -> Commit | None:
    """None where there is none that can be read. `listed`: as a listing shows it."""
    try:
        data = read_object(
            storage,
            object_names.commit_object(run, step),
            limit=MAX_COMMIT_BYTES,
            listed=listed,
        )
        return decode_commit(data, run=run, step=step)
    except (Damaged, EOFError, NotFound, InputError):
        return None


def runs(storage: Storage) -> list[str]:
    # By the objects themselves: stores have no folders, and a run that never committed is listed
    # too.
    return sorted({found.name.split("/")[0] for found in storage.list("") if "/" in found.name})


def steps_of(step: int | None, committed: list[int], run: str) -> list[int]:
    """Those to try: all, or the one that is wanted. Raises InputError where that one is not there."""
    if step is not None and step not in committed:
        raise InputError(
            f"run {run} has no checkpoint of this step",
            got=str(step),
            allowed=", ".join(map(str, committed[:10])) or "none: the run has no commit",
            fix="choose one of these steps",
        )
    return committed if step is None else [step]


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


def commit(
    storage: Storage,
    own: Manifest,
    *,
    state: CommitState,
    timeout_s: float,
    abandoned: Callable[[float], bool],
) -> Commit:
    """`abandoned(seconds)` waits that long and returns whether to give up.

    Raises StorageError when a rank's manifest is missing for `timeout_s`, Damaged when the store
    holds something else than was sent, Abandoned when it gives up, Fenced when a newer trainer has
    the right to commit.
    """
    # A manifest is written after its shards, so manifests of all ranks mean that every shard was
    # sent.
    names = _wait_for_manifests(storage, own, timeout_s, abandoned)
    # One listing for all objects: a stat for each would be thousands of requests in the commit's
    # way.
    stored = {}
    for found in storage.list(object_names.attempt_prefix(*own.attempt_id)):
        stored[found.name] = found
    payloads = [
        read_object(
            storage,
            name,
            limit=MAX_MANIFEST_BYTES,
            listed=stored.get(name),
        )
        for name in names
    ]
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
    )
    # As late as can be: a trainer that was frozen for an hour wakes up between any two lines.
    fence.check(storage, own.run, state.epoch)
    if _write(storage, record, state.damaged):
        state.commit_count = record.commit_count
    failpoint("commit.written")
    return record


def _wait_for_manifests(
    storage: Storage,
    own: Manifest,
    timeout_s: float,
    abandoned: Callable[[float], bool],
) -> list[str]:
    """Their names by rank, once all ranks have written theirs."""
    names = [object_names.manifest_object(*own.attempt_id, rank) for rank in range(own.world_size)]
    deadline = time.monotonic() + timeout_s
    pause = FIRST_PAUSE_S
    missing = [rank for rank in range(own.world_size) if rank != own.rank]
    while True:
        # Only for what was missing: each round costs one request per missing rank.
        missing = [rank for rank in missing if not exists(storage, names[rank])]
        if not missing:
            return names
        if time.monotonic() > deadline:
            raise StorageError(f"no manifest of ranks {missing[:8]} after {timeout_s:.0f} s")
        if abandoned(pause):
            raise Abandoned
        pause = min(pause * 1.5, LONGEST_PAUSE_S)


def _verified(stored: dict[str, Stat], own: Manifest, payload: bytes) -> Manifest:
    """The manifest, if every shard it lists is there with its size (and checksum, where the store
    keeps one).
    """
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
    data = record.encode()
    try:
        put_new(storage, name, data)
    except AlreadyExists:
        holder = read_commit(storage, record.run, record.step)
        if holder is not None and holder.attempt == record.attempt:
            return True  # our own earlier try, whose answer was lost
        if holder is not None and holder.attempt not in damaged and holder.epoch >= record.epoch:
            # A copied or repeated step may stay; of one start, the work of the second save would
            # count as safe.
            if record.epoch:
                raise StorageError(
                    f"step {record.step} was committed before by this very start: its number was"
                    " used twice"
                ) from None
            return False
        # What is there is unreadable, damaged, or of a trainer that this one has superseded. A kill
        # between these two leaves the step without a commit, and restore takes the one before.
        storage.delete(name)
        put_new(storage, name, data)
    return True
