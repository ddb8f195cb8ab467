"""Copy a checkpoint into another run: a branch of a run, or the import of another format."""

from dataclasses import replace

from holdfast.checkpoint.format import Commit, Manifest
from holdfast.checkpoint.format.commit import CommitState, commit, committed_steps
from holdfast.checkpoint.format.validation import read_shard
from holdfast.checkpoint.restore.reader import Opened
from holdfast.checkpoint.stores.storage import Storage, put_object, random_hex
from holdfast.checkpoint.stores.storage import crc32c as compute_crc32c
from holdfast.support.errors import InputError


def copy_checkpoint(
    source: Storage,
    opened: Opened,
    target: Storage,
    run: str,
    step: int,
) -> Commit:
    """Copy an opened checkpoint to `run`, shard by shard, and commit it there.

    Raises InputError if the run has commits, Damaged if a shard does not verify.
    """
    steps = committed_steps(target, run)
    if steps:
        raise InputError(
            f"run {run} has checkpoints",
            got=", ".join(map(str, steps[:10])),
            allowed="the name of a new run",
            fix="choose another name",
        )
    attempt = random_hex(6)
    copies: list[Manifest] = []
    for manifest in opened.manifests:
        # A copy has shards of its own, and can outlive the run that it comes from.
        shards = tuple(replace(shard, sha256="") for shard in manifest.shards)
        copies.append(
            replace(
                manifest,
                run=run,
                step=step,
                attempt=attempt,
                shards=shards,
            )
        )
    for manifest, copied in zip(opened.manifests, copies, strict=True):
        for index, shard in enumerate(manifest.shards):
            data = read_shard(source, manifest, index)
            put_object(target, copied.shard_name(index), data, shard.crc32c)
        encoded = memoryview(bytearray(copied.encode()))
        put_object(target, copied.name, encoded, compute_crc32c(encoded))
    return commit(
        target,
        copies[0],
        state=CommitState(),
        timeout_s=0.0,
        abandoned=lambda _: False,
    )
