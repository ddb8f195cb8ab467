"""A table of the checkpoints below a URL, for people: every attempt with its state."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from holdfast.checkpoint.errors import Damaged, StorageError
from holdfast.checkpoint.format import Manifest
from holdfast.checkpoint.format.commit import StepObjects, list_runs, survey
from holdfast.checkpoint.format.validation import read_shard
from holdfast.checkpoint.restore.reader import Opened, open_step
from holdfast.checkpoint.stores.storage import Storage
from holdfast.support.errors import InputError

VERIFIED = "verified"
COMMITTED = "committed, not read"
UNCOMMITTED = "no commit: still being written, or its writer was killed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    run: str
    step: int
    attempt: str
    bytes: int
    state: str
    age_s: float
    world_size: int = 0

    @property
    def sound(self) -> bool:
        return self.state in (VERIFIED, COMMITTED)


def rows(
    storage: Storage,
    run: str | None,
    *,
    read: bool,
) -> Iterator[Row]:
    """Yields a row for each attempt, newest first. `read`: compare every byte with its checksum."""
    for name in [run] if run else list_runs(storage):
        for entry in sorted(survey(storage, name).values(), key=lambda entry: -entry.step):
            yield from _list_step(
                storage,
                name,
                entry,
                read,
            )


def _list_step(
    storage: Storage,
    run: str,
    entry: StepObjects,
    read: bool,
) -> Iterator[Row]:
    committed = (
        _inspect_commit(
            storage,
            run,
            entry,
            read,
        )
        if entry.commit
        else None
    )
    if committed is not None:
        yield committed
    for attempt, objects in entry.attempts.items():
        # A step may hold shards of earlier tries in addition to those of its commit.
        if committed is None or attempt != committed.attempt:
            yield Row(
                run=run,
                step=entry.step,
                attempt=attempt,
                bytes=sum(stat.bytes for stat in objects),
                state=UNCOMMITTED,
                age_s=time.time() - max(stat.modified for stat in objects),
            )


def _inspect_commit(
    storage: Storage,
    run: str,
    entry: StepObjects,
    read: bool,
) -> Row:
    assert entry.commit is not None
    age_s = time.time() - entry.commit.modified
    row = Row(
        run=run,
        step=entry.step,
        attempt="",
        bytes=0,
        state=COMMITTED,
        age_s=age_s,
    )
    try:
        opened = open_step(storage, run, entry.step)
        commit = opened.commit
        row = replace(
            row,
            attempt=commit.attempt,
            bytes=commit.total_bytes,
            world_size=commit.world_size,
        )
        if read:
            verify(storage, opened)
            row = replace(row, state=VERIFIED)
    # One bad checkpoint is a row of the table: a person who looks for a sound one needs the others.
    except (Damaged, InputError, StorageError) as error:
        row = replace(row, state=f"skipped: {error}")
    return row


def verify(storage: Storage, opened: Opened) -> None:
    """Reads every shard. Raises Damaged unless each is what was committed."""

    def check(shard: tuple[Manifest, int]) -> int:
        manifest, index = shard
        # The length and not the bytes: all of them would stay in memory.
        return len(read_shard(storage, manifest, index))

    # Each thread holds a whole shard, so the memory needed does not grow with the checkpoint.
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, _list_shards(opened)))


def _list_shards(opened: Opened) -> Iterator[tuple[Manifest, int]]:
    for manifest in opened.manifests:
        for index in range(len(manifest.shards)):
            yield manifest, index
