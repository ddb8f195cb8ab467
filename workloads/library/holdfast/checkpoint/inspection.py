"""What is stored below a URL, for people: every attempt with its state, and copies of checkpoints to another store.

The commit of a copy goes last and unchanged, so a copy that is killed leaves an attempt and no checkpoint, and one that
is repeated sends only what is missing.
"""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from holdfast.checkpoint.errors import Damaged, NotFound, StorageError
from holdfast.checkpoint.format import Manifest
from holdfast.checkpoint.format.commit import StepObjects, committed_steps, runs, steps_of, survey
from holdfast.checkpoint.format.decoding import MAX_COMMIT_BYTES, MAX_MANIFEST_BYTES, decode_commit, decode_manifest
from holdfast.checkpoint.format.soundness import read_shard
from holdfast.checkpoint.restore.reading import Opened, open_step
from holdfast.checkpoint.state import RNG_KEY
from holdfast.checkpoint.stores.storage import Storage, exists, put_bytes, put_object, read_object
from holdfast.contract import object_names
from holdfast.contract.errors import InputError

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
    resumes_on: str = ""

    @property
    def sound(self) -> bool:
        return self.state in (VERIFIED, COMMITTED)


def rows(storage: Storage, run: str | None, *, read: bool) -> Iterator[Row]:
    """Newest first. `read` compares every byte with its checksum."""
    for name in [run] if run else runs(storage):
        for entry in sorted(survey(storage, name).values(), key=lambda e: -e.step):
            yield from _rows_of_step(storage, name, entry, read)


def _rows_of_step(storage: Storage, run: str, entry: StepObjects, read: bool) -> Iterator[Row]:
    committed = _committed(storage, run, entry, read) if entry.commit else None
    if committed is not None:
        yield committed
    for attempt, objects in entry.attempts.items():
        # A step may hold shards of earlier tries in addition to those of its commit.
        if committed is None or attempt != committed.attempt:
            yield Row(
                run=run,
                step=entry.step,
                attempt=attempt,
                bytes=sum(found.bytes for found in objects),
                state=UNCOMMITTED,
                age_s=time.time() - max(found.modified for found in objects),
            )


def _committed(storage: Storage, run: str, entry: StepObjects, read: bool) -> Row:
    assert entry.commit is not None
    age_s = time.time() - entry.commit.modified
    try:
        opened = open_step(storage, run, entry.step)
    # One bad checkpoint is a row of the table: who looks for a sound one has to see the others.
    except (Damaged, InputError, StorageError) as error:
        return Row(run=run, step=entry.step, attempt="", bytes=0, state=f"skipped: {error}", age_s=age_s)
    state = COMMITTED
    if read:
        try:
            verify(storage, opened)
            state = VERIFIED
        except (Damaged, StorageError) as error:
            state = f"skipped: {error}"
    commit = opened.commit
    return Row(
        run=run,
        step=commit.step,
        attempt=commit.attempt,
        bytes=commit.total_bytes,
        state=state,
        age_s=age_s,
        world_size=commit.world_size,
        resumes_on=resumes_on(opened),
    )


def verify(storage: Storage, opened: Opened) -> None:
    """Raises Damaged unless every shard is what was committed."""

    def one(place: tuple[Manifest, int]) -> int:
        return len(read_shard(storage, *place))  # and not the bytes: all of them would be kept

    # Each thread holds a whole shard, so the memory needed does not grow with the checkpoint.
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, _places(opened.manifests)))


def resumes_on(opened: Opened) -> str:
    """Tensors of single ranks other than random states bind a checkpoint to its world size."""
    own = [
        key
        for key, sources in opened.sources.items()
        if not key.startswith(f"{RNG_KEY}/") and len({(s.part.offset, s.part.extent) for s in sources}) < len(sources)
    ]
    return "any world size" if not own else f"{opened.commit.world_size} ranks only"


PARALLEL = 8


def copy_run(
    source: Storage, target: Storage, run: str, step: int | None, *, every: bool
) -> Iterator[tuple[int, str, bool]]:
    """Step, what became of it, and whether it is sound. Raises InputError where `step` is not in the source."""
    steps = steps_of(step, committed_steps(source, run), run)
    # Oldest first: a copy that is killed leaves a target that lacks the newest steps, and no older one between two.
    for one in sorted(steps if every else steps[:1]):
        try:
            size = copy_step(source, target, run, one)
            yield one, f"{size / 1e6:.1f} MB" if size else "there already", True
        except Damaged as error:
            yield one, f"passed over: {error}", False


def copy_step(source: Storage, target: Storage, run: str, step: int) -> int:
    """Bytes that were sent; 0 where the target has this step. Raises Damaged before the commit is written, and
    InputError where the target holds another step of this number."""
    name = object_names.commit_object(run, step)
    record = _read(source, name)
    commit = decode_commit(record, run=run, step=step)
    if exists(target, name):
        # The same bytes, and not the same step alone: two runs of one name would become one with steps of both.
        if _read(target, name) == record:
            return 0
        raise InputError(
            f"step {step} of run {run} is there with another content",
            got=name,
            allowed="a target that lacks the step or has this very one",
            fix="copy to another URL, or delete the step there",
        )
    manifests = [_read(source, commit.manifest_name(rank), MAX_MANIFEST_BYTES) for rank in range(commit.world_size)]
    decoded = [decode_manifest(data, commit, rank) for rank, data in enumerate(manifests)]
    # Shards, manifests, commit: in any other order a kill would leave a checkpoint that lacks bytes.
    with ThreadPoolExecutor(PARALLEL) as pool:
        sent = sum(pool.map(partial(_copy_shard, source, target), _places(decoded)))
    for rank, data in enumerate(manifests):
        put_bytes(target, commit.manifest_name(rank), data)
    put_bytes(target, name, record)
    return sent + sum(map(len, manifests)) + len(record)


def _places(manifests: Iterable[Manifest]) -> Iterator[tuple[Manifest, int]]:
    return ((manifest, index) for manifest in manifests for index in range(len(manifest.shards)))


def _copy_shard(source: Storage, target: Storage, place: tuple[Manifest, int]) -> int:
    manifest, index = place
    data = read_shard(source, manifest, index)
    put_object(target, manifest.shard_name(index), data, manifest.shards[index].crc32c)
    return len(data)


def _read(storage: Storage, name: str, limit: int = MAX_COMMIT_BYTES) -> bytes:
    try:
        return read_object(storage, name, limit=limit)
    except (NotFound, EOFError) as error:
        raise Damaged(str(error)) from error
