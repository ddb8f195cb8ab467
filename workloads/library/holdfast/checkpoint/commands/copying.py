"""Checkpoints from one store to another, compared with their checksums on the way.

The commit goes last and unchanged, so a copy that is killed leaves an attempt and no checkpoint, and one that is
repeated sends only what is missing.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from holdfast.checkpoint.errors import Damaged, NotFound
from holdfast.checkpoint.format.catalogue import committed_steps, steps_of
from holdfast.checkpoint.format.decoding import MAX_COMMIT_BYTES, MAX_MANIFEST_BYTES, decode_commit, decode_manifest
from holdfast.checkpoint.format.records import Manifest
from holdfast.checkpoint.format.soundness import read_shard
from holdfast.checkpoint.stores.storage import Storage, exists, put_bytes, put_object, read_object
from holdfast.contract import object_names
from holdfast.contract.errors import InputError

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


def _places(manifests: list[Manifest]) -> Iterator[tuple[Manifest, int]]:
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
