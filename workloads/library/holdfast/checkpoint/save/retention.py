"""What may be deleted: committed checkpoints that no rule keeps, and attempts without a commit.

Rank 0's uploader deletes after each commit. An attempt without a commit never counts as a
checkpoint, so saves that were killed cannot push out the last good one. Objects of saves that
failed go at once: what a full disk holds of them is what the next save lacks.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from holdfast.checkpoint.errors import AlreadyExists, StorageError, Transient
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import Commit, Manifest
from holdfast.checkpoint.format.commit import StepObjects, read_commit, survey
from holdfast.checkpoint.stores.storage import Stat, Storage
from holdfast.support import object_names

# Longer than any upload lasts: a save that is still being written looks like an orphan. Attempts
# that failed, or of an earlier start, go at once.
ORPHAN_AGE_S = 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What stays: the union of all of these."""

    keep: int
    """The newest."""
    keep_every: int = 0
    """And multiples of it."""
    damaged: frozenset[str] = frozenset()
    """Attempts that restore passed over: they count as no checkpoint, and go when they are old."""
    stale: frozenset[str] = frozenset()
    """Attempts without a commit that were there when this start took the fence: they can get none
    any more.
    """

    def kept(self, steps: Iterable[int]) -> set[int]:
        ordered = sorted(steps, reverse=True)
        return {
            *ordered[: self.keep],
            *(step for step in ordered if self.keep_every and step % self.keep_every == 0),
        }


Known = dict[Stat, Commit]
"""Commits by what a listing shows of them: an object is never changed, so none is read twice."""


def retain(
    storage: Storage,
    run: str,
    policy: Policy,
    *,
    known: Known | None = None,
) -> list[str]:
    """Deletes, and returns the names that went. `known`: kept by the caller from one call to the
    next.
    """
    failpoint("retention.begin")
    steps = survey(storage, run)
    commits = _commits(storage, run, steps.values(), {} if known is None else known)
    sound = {commit.step for commit in commits.values() if commit.attempt not in policy.damaged}
    going = sound - policy.kept(sound)
    gone: list[str] = []
    oldest = time.time() - ORPHAN_AGE_S
    for entry in steps.values():
        commit = commits.get(entry.step)
        newest = max(
            (found.modified for objects in entry.attempts.values() for found in objects),
            default=0.0,
        )
        # Damage may be a bad read: what restore passed over stays a day, for a person to look at.
        spoilt = commit is not None and commit.attempt in policy.damaged and newest < oldest
        if spoilt or entry.step in going:
            gone += _drop_step(storage, run, entry)
        # A commit that cannot be read is no checkpoint, and no reason to delete anything.
        elif entry.commit is None or commit is not None:
            gone += _drop_orphans(
                storage, entry, commit.attempt if commit else "", oldest, policy.stale
            )
    failpoint("retention.end")
    return gone


def _commits(
    storage: Storage,
    run: str,
    entries: Iterable[StepObjects],
    known: Known,
) -> dict[int, Commit]:
    listed = {entry.step: entry.commit for entry in entries if entry.commit}
    found = {
        stat: known.get(stat) or read_commit(storage, run, step, listed=stat)
        for step, stat in listed.items()
    }
    known.clear()
    known.update((stat, commit) for stat, commit in found.items() if commit is not None)
    return {commit.step: commit for commit in known.values()}


def _drop_step(storage: Storage, run: str, entry: StepObjects) -> Iterator[str]:
    commit = object_names.commit_object(run, entry.step)
    # First, so that a kill in between leaves an attempt without commit and never a commit without
    # shards.
    storage.delete(commit)
    yield commit
    failpoint("retention.uncommitted")
    for objects in entry.attempts.values():
        for found in objects:
            storage.delete(found.name)
            yield found.name


def _drop_orphans(
    storage: Storage,
    entry: StepObjects,
    committed: str,
    oldest: float,
    stale: frozenset[str],
) -> Iterator[str]:
    for attempt, objects in entry.attempts.items():
        # By its newest object: the first one of a slow upload may be old while the last is still to
        # come.
        old = attempt in stale or max(found.modified for found in objects) < oldest
        if attempt != committed and old:
            for found in objects:
                storage.delete(found.name)
                yield found.name


# Of how many failed saves another rank may still be uploading its part.
REMEMBERED = 8


class FailedAttempts:
    """Of one rank. Rank 0 alone commits, so it clears an attempt whole; another rank clears what it
    wrote itself.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._failed: list[Manifest] = []

    def add(self, manifest: Manifest, error: Exception) -> None:
        # A commit whose answer was lost may be there after all: that attempt is left to retention.
        if not isinstance(error, Transient | AlreadyExists):
            self._failed = [*self._failed, manifest][-REMEMBERED:]

    def clear(self) -> None:
        """To be called again before each save: ranks that failed later, or not at all, wrote on
        meanwhile.
        """
        for manifest in self._failed:
            mine = object_names.rank_prefix(*manifest.attempt_id, manifest.rank)
            with suppress(StorageError, OSError):
                for found in list(
                    self._storage.list(object_names.attempt_prefix(*manifest.attempt_id))
                ):
                    if manifest.rank == 0 or found.name.startswith(mine):
                        self._storage.delete(found.name)
