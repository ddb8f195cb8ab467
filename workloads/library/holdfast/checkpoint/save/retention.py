"""Retention: deletes committed checkpoints that no rule keeps, and attempts without a commit.

Rank 0's uploader deletes after each commit. An attempt without a commit never counts as a
checkpoint, so killed saves cannot push out the last good one. Objects of failed saves are deleted
at once: on a full disk they take the room that the next save needs.
"""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from holdfast.checkpoint.errors import AlreadyExists, StorageError, Transient
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import Commit, Manifest
from holdfast.checkpoint.format.commit import StepObjects, read_commit, survey
from holdfast.checkpoint.save.references import References, SharedNames
from holdfast.checkpoint.stores.storage import Stat, Storage
from holdfast.support import object_names

# Longer than any upload lasts: a save that is still being written looks like an orphan. Attempts
# that failed, or of an earlier start, are deleted at once.
ORPHAN_AGE_S = 86_400.0
PARALLEL = 8
"""Number of objects that are deleted at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Rules for what stays: a checkpoint stays if any of them keeps it."""

    keep: int
    """Number of newest checkpoints that stay."""
    keep_every: int = 0
    """Checkpoints whose step is a multiple of it stay; 0: none for that reason."""
    damaged: frozenset[str] = frozenset()
    """Attempts that restore skipped. They count as no checkpoint, and are deleted when old."""
    stale: frozenset[str] = frozenset()
    """Attempts without a commit that existed when this start took the fence: none can get one any
    more.
    """

    def steps_to_keep(self, steps: Iterable[int]) -> set[int]:
        ordered = sorted(steps, reverse=True)
        keep = set(ordered[: self.keep])
        for step in ordered:
            if self.keep_every and step % self.keep_every == 0:
                keep.add(step)
        return keep


CommitCache = dict[Stat, Commit]
"""Commits by their entry in a listing. An object is never changed, so none is read twice."""


def retain(
    storage: Storage,
    run: str,
    policy: Policy,
    *,
    cache: CommitCache | None = None,
    shared_names: SharedNames | None = None,
) -> list[str]:
    """Deletes what `policy` does not keep, and returns the names of the deleted objects.

    The caller keeps `cache` and `shared_names` from one call to the next.
    """
    failpoint("retention.begin")
    steps = survey(storage, run)
    commits = _read_commits(
        storage,
        run,
        steps.values(),
        {} if cache is None else cache,
    )
    sound: set[int] = set()
    for step, commit in commits.items():
        if commit.attempt not in policy.damaged:
            sound.add(step)
    expired = sound - policy.steps_to_keep(sound)
    deleted: list[str] = []
    oldest = time.time() - ORPHAN_AGE_S
    references = References(storage, {} if shared_names is None else shared_names)
    if expired:
        references.read(commits)
    for entry in steps.values():
        commit = commits.get(entry.step)
        # Damage may be a bad read: what restore skipped stays a day, for a person to look at.
        is_damaged = commit is not None and commit.attempt in policy.damaged
        is_old_damage = is_damaged and _newest_change(entry) < oldest
        if is_old_damage or entry.step in expired:
            deleted += _delete_step(storage, run, entry)
            commits.pop(entry.step, None)
        # A commit that cannot be read is no checkpoint, and no reason to delete anything.
        elif entry.commit is None or commit is not None:
            attempt = commit.attempt if commit else ""
            deleted += _delete_orphans(
                storage,
                entry,
                attempt,
                oldest,
                policy.stale,
            )
    if expired:
        deleted += references.delete_orphans(run, commits, oldest)
    failpoint("retention.end")
    return deleted


def _newest_change(entry: StepObjects) -> float:
    newest = 0.0
    for objects in entry.attempts.values():
        for stat in objects:
            newest = max(newest, stat.modified)
    return newest


def _read_commits(
    storage: Storage,
    run: str,
    entries: Iterable[StepObjects],
    cache: CommitCache,
) -> dict[int, Commit]:
    commits: CommitCache = {}
    for entry in entries:
        stat = entry.commit
        if stat is None:
            continue
        commit = cache.get(stat) or read_commit(
            storage,
            run,
            entry.step,
            listed=stat,
        )
        if commit is not None:
            commits[stat] = commit
    cache.clear()
    cache.update(commits)
    return {commit.step: commit for commit in commits.values()}


def _delete_step(
    storage: Storage,
    run: str,
    entry: StepObjects,
) -> Iterator[str]:
    commit = object_names.commit_object(run, entry.step)
    # First, so that a kill in between leaves an attempt without commit and never a commit without
    # shards.
    storage.delete(commit)
    yield commit
    failpoint("retention.uncommitted")
    for objects in entry.attempts.values():
        yield from _delete_objects(storage, objects)


def _delete_orphans(
    storage: Storage,
    entry: StepObjects,
    committed: str,
    oldest: float,
    stale: frozenset[str],
) -> Iterator[str]:
    """Deletes attempts of a step other than `committed` that can get no commit any more."""
    for attempt, objects in entry.attempts.items():
        if attempt == committed:
            continue
        # By its newest object: the first one of a slow upload may be old while the last is still to
        # come.
        newest = max(stat.modified for stat in objects)
        if attempt not in stale and newest >= oldest:
            continue
        yield from _delete_objects(storage, objects)


def _delete_objects(storage: Storage, objects: Iterable[Stat]) -> list[str]:
    # The next save waits for this, and each object is a request.
    names: list[str] = []
    for stat in objects:
        names.append(stat.name)
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="delete") as pool:
        for _ in pool.map(storage.delete, names):
            pass
    return names


MOST_FAILED_ATTEMPTS = 8
"""Number of failed saves for which another rank may still be uploading its part."""


class FailedAttempts:
    """Failed attempts of one rank, whose objects are to be deleted.

    Only rank 0 commits, so it deletes an attempt of all ranks; another rank deletes what it wrote
    itself.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._manifests: list[Manifest] = []

    def add(self, manifest: Manifest, error: Exception) -> None:
        # A commit whose answer was lost may exist after all: that attempt is left to retention.
        if isinstance(error, Transient | AlreadyExists):
            return
        self._manifests.append(manifest)
        del self._manifests[:-MOST_FAILED_ATTEMPTS]

    def clear(self) -> None:
        """Deletes the objects. Call it again before each save: ranks that failed later, or not at
        all, continued to write meanwhile.
        """
        for manifest in self._manifests:
            with suppress(StorageError, OSError):
                self._delete_attempt(manifest)

    def _delete_attempt(self, manifest: Manifest) -> None:
        prefix = object_names.attempt_prefix(*manifest.attempt_id)
        rank_prefix = object_names.rank_prefix(*manifest.attempt_id, manifest.rank)
        for stat in list(self._storage.list(prefix)):
            if manifest.rank == 0 or stat.name.startswith(rank_prefix):
                self._storage.delete(stat.name)
