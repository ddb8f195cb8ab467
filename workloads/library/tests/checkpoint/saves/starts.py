"""Starts of one run that commit steps without tensors."""

from holdfast.checkpoint.format import Commit, Manifest
from holdfast.checkpoint.format.commit import CommitState, commit, read_commit
from holdfast.checkpoint.stores import Storage, put_new
from holdfast.support import object_names

RUN = "r"


def commit_step(storage: Storage, step: int, number: int) -> Commit:
    """Commits a step as start `number`. Raises Fenced as `commit` does."""
    attempt = f"{number:012x}"
    manifest = Manifest(
        run=RUN,
        step=step,
        attempt=attempt,
        rank=0,
        world_size=1,
        shards=(),
        tensors=(),
        values={},
    )
    name = object_names.manifest_object(RUN, step, attempt, 0)
    put_new(storage, name, manifest.encode())
    return commit(
        storage,
        manifest,
        state=CommitState(epoch=number, keep=3),
        timeout_s=1.0,
        abandoned=lambda _: False,
    )


def find_committer(storage: Storage, step: int) -> int:
    """Returns the number of the start that committed a step; 0 if there is no commit."""
    present = read_commit(storage, RUN, step)
    return present.epoch if present else 0
