"""What may be deleted: all but the newest K committed checkpoints and every Nth, and attempts nobody committed.

Rank 0's uploader deletes after each commit, nobody else ever. An attempt without a commit never counts as a checkpoint, so
saves that were killed cannot push out the last good one. The commit goes first and the shards after it:
a kill in between leaves an uncommitted attempt, never a commit without shards.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.checkpoint.catalogue import StepObjects, survey
from holdfast.checkpoint.decoding import MAX_COMMIT_BYTES, decode_commit
from holdfast.checkpoint.errors import Damaged, NotFound
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.storage import Storage, read_object
from holdfast.contract import object_names
from holdfast.contract.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    keep: int
    keep_every: int = 0
    orphan_age_s: float = 86_400.0
    damaged: frozenset[str] = frozenset()
    """Attempts that restore passed over: they count as no checkpoint, and go when they are old."""

    def kept(self, steps: list[int]) -> set[int]:
        newest = sorted(steps, reverse=True)[: self.keep]
        nth = [step for step in steps if self.keep_every and step % self.keep_every == 0]
        return {*newest, *nth}


def retain(storage: Storage, run: str, policy: Policy, *, now: float | None = None) -> list[str]:
    """Deletes, and returns the names that went."""
    failpoint("retention.begin")
    steps = survey(storage, run)
    attempts = {entry.step: _committed_attempt(storage, run, entry) for entry in steps.values() if entry.commit}
    sound = [step for step, attempt in attempts.items() if attempt and attempt not in policy.damaged]
    kept = policy.kept(sound)
    gone: list[str] = []
    oldest = (time.time() if now is None else now) - policy.orphan_age_s
    for entry in steps.values():
        # Damage may be a bad read: what restore passed over stays a day, for a person to look at.
        spoilt = attempts.get(entry.step) in policy.damaged and _newest(entry) < oldest
        if spoilt or (entry.step in sound and entry.step not in kept):
            gone += _drop_step(storage, run, entry)
        elif entry.commit is None or attempts[entry.step]:
            gone += _drop_orphans(storage, entry, attempts.get(entry.step, ""), oldest)
    failpoint("retention.end")
    return gone


def _committed_attempt(storage: Storage, run: str, entry: StepObjects) -> str:
    """Empty for a commit that cannot be read: it is no checkpoint, and no reason to delete anything."""
    try:
        data = read_object(storage, object_names.commit_object(run, entry.step), limit=MAX_COMMIT_BYTES)
        return decode_commit(data, run=run, step=entry.step).attempt
    except (Damaged, EOFError, NotFound, InputError):
        return ""


def _newest(entry: StepObjects) -> float:
    return max((found.modified for objects in entry.attempts.values() for found in objects), default=0.0)


def _drop_step(storage: Storage, run: str, entry: StepObjects) -> Iterator[str]:
    commit = object_names.commit_object(run, entry.step)
    # First, so that a kill in between leaves an attempt without commit and never a commit without shards.
    storage.delete(commit)
    yield commit
    failpoint("retention.uncommitted")
    for objects in entry.attempts.values():
        for found in objects:
            storage.delete(found.name)
            yield found.name


def _drop_orphans(storage: Storage, entry: StepObjects, committed: str, oldest: float) -> Iterator[str]:
    for attempt, objects in entry.attempts.items():
        # By its newest object: the first one of a slow upload may be old while the last is still to come.
        if attempt != committed and max(found.modified for found in objects) < oldest:
            for found in objects:
                storage.delete(found.name)
                yield found.name
