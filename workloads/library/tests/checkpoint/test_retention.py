"""Retention keeps verified checkpoints, never counts what nobody committed, and may be killed anywhere."""

import os
from pathlib import Path

import pytest

from holdfast.checkpoint.format import Commit, Manifest, digest_of
from holdfast.checkpoint.format.commit import committed_steps
from holdfast.checkpoint.save.retention import Policy, retain
from holdfast.checkpoint.stores.local import LocalStorage
from holdfast.checkpoint.stores.storage import put_new
from holdfast.contract import object_names

RUN = "r"


def attempt(storage: LocalStorage, step: int, token: str, *, committed: bool) -> None:
    put_new(storage, object_names.shard_object(RUN, step, token, 0, 0), b"shard")
    manifest = Manifest(
        run=RUN, step=step, attempt=token, rank=0, world_size=1, shards=(), tensors=(), values={}
    ).encode()
    put_new(storage, object_names.manifest_object(RUN, step, token, 0), manifest)
    if committed:
        commit = Commit(
            run=RUN, step=step, attempt=token, world_size=1, total_bytes=5, created=0, manifests=(digest_of(manifest),)
        )
        put_new(storage, object_names.commit_object(RUN, step), commit.encode())


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage.open(str(tmp_path))


def test_the_newest_are_kept_and_every_nth(storage: LocalStorage) -> None:
    for step in range(10, 100, 10):
        attempt(storage, step, f"{step:012x}", committed=True)
    retain(storage, RUN, Policy(keep=2, keep_every=40))
    assert committed_steps(storage, RUN) == [90, 80, 40]
    assert {found.name.split("/")[1][-2:] for found in storage.list(RUN)} == {"40", "80", "90"}


def test_attempts_without_a_commit_push_out_no_checkpoint(storage: LocalStorage) -> None:
    attempt(storage, 10, "a" * 12, committed=True)
    for step in range(20, 100, 10):
        attempt(storage, step, "b" * 12, committed=False)
    retain(storage, RUN, Policy(keep=3))
    assert committed_steps(storage, RUN) == [10]
    assert len({found.name.split("/")[1] for found in storage.list(RUN)}) == 9


def test_attempts_without_a_commit_go_when_they_are_old(storage: LocalStorage, tmp_path: Path) -> None:
    attempt(storage, 10, "a" * 12, committed=True)
    attempt(storage, 10, "b" * 12, committed=False)
    attempt(storage, 20, "c" * 12, committed=False)
    attempt(storage, 30, "d" * 12, committed=False)
    for path in (*tmp_path.rglob("step-000000002*/**/*"), *tmp_path.rglob("b" * 12 + "/*")):
        os.utime(path, (0, 0))
    retain(storage, RUN, Policy(keep=3))
    assert {found.name.split("/")[2] for found in storage.list(RUN)} == {"a" * 12, "d" * 12, "COMMIT.json"}


def test_a_commit_that_cannot_be_read_is_no_reason_to_delete(storage: LocalStorage, tmp_path: Path) -> None:
    for step in (10, 20):
        attempt(storage, step, "a" * 12, committed=True)
    (tmp_path / object_names.commit_object(RUN, 20)).write_text("{")
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, 0))
    retain(storage, RUN, Policy(keep=1))
    assert len(list(storage.list(f"{RUN}/step-0000000020"))) == 3
    assert len(list(storage.list(f"{RUN}/step-0000000010"))) == 3


def test_what_restore_found_damaged_pushes_out_no_checkpoint_and_goes_when_it_is_old(
    storage: LocalStorage, tmp_path: Path
) -> None:
    for step, token in ((10, "a"), (20, "b"), (30, "c")):
        attempt(storage, step, token * 12, committed=True)
    policy = Policy(keep=1, damaged=frozenset({"b" * 12, "c" * 12}))
    retain(storage, RUN, policy)
    assert committed_steps(storage, RUN) == [30, 20, 10]
    for path in tmp_path.rglob("c" * 12 + "/*"):
        os.utime(path, (0, 0))
    retain(storage, RUN, policy)
    assert committed_steps(storage, RUN) == [20, 10]
    assert not list(storage.list(f"{RUN}/step-0000000030"))


def test_of_a_step_that_goes_the_commit_goes_first(storage: LocalStorage) -> None:
    for step in (10, 20):
        attempt(storage, step, "a" * 12, committed=True)
    assert retain(storage, RUN, Policy(keep=1))[0] == object_names.commit_object(RUN, 10)
