"""Retention keeps verified checkpoints, never counts attempts without a commit, and may be killed
anywhere.
"""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.format import Commit, Manifest, digest_manifest
from holdfast.checkpoint.format.commit import committed_steps
from holdfast.checkpoint.save.retention import CommitCache, Policy, retain
from holdfast.checkpoint.stores.local import LocalStorage
from holdfast.checkpoint.stores.storage import put_new
from holdfast.support import object_names

RUN = "r"


class Stored(LocalStorage):
    def attempt(
        self,
        step: int,
        letter: str = "a",
        *,
        committed: bool = True,
    ) -> None:
        token = letter * 12
        put_new(
            self,
            object_names.shard_object(
                RUN,
                step,
                token,
                0,
                0,
            ),
            b"shard",
        )
        head = {
            "run": RUN,
            "step": step,
            "attempt": token,
            "world_size": 1,
        }
        manifest = Manifest(
            **head,
            rank=0,
            shards=(),
            tensors=(),
            values={},
        ).encode()
        put_new(
            self,
            object_names.manifest_object(
                RUN,
                step,
                token,
                0,
            ),
            manifest,
        )
        if committed:
            commit = Commit(
                **head,
                total_bytes=5,
                created=0,
                manifests=(digest_manifest(manifest),),
            )
            put_new(self, object_names.commit_object(RUN, step), commit.encode())

    def age(self, pattern: str) -> None:
        for path in self._root.rglob(pattern):
            os.utime(path, (0, 0))

    def steps(self) -> set[int]:
        """Returns the steps that still have objects."""
        stored_steps: set[int] = set()
        for stat in self.list(RUN):
            stored_steps.add(int(stat.name.split("/")[1].removeprefix("step-")))
        return stored_steps


@pytest.fixture
def storage(tmp_path: Path) -> Stored:
    return Stored.open(str(tmp_path))


def test_the_newest_are_kept_and_every_nth(storage: Stored) -> None:
    for step in range(10, 100, 10):
        storage.attempt(step)
    retain(storage, RUN, Policy(keep=2, keep_every=40))
    assert committed_steps(storage, RUN) == [90, 80, 40]
    assert storage.steps() == {40, 80, 90}


def test_attempts_without_a_commit_replace_no_checkpoint_and_expire(storage: Stored) -> None:
    storage.attempt(10)
    storage.attempt(10, "b", committed=False)
    for step in range(20, 100, 10):
        storage.attempt(step, "c", committed=False)
    retain(storage, RUN, Policy(keep=3))
    assert committed_steps(storage, RUN) == [10]
    assert storage.steps() == {*range(10, 100, 10)}
    storage.age("step-000000002*/**/*")
    storage.age("b" * 12 + "/*")
    retain(storage, RUN, Policy(keep=3))
    assert storage.steps() == {10, *range(30, 100, 10)}
    names: set[str] = set()
    for stat in storage.list(RUN):
        names.add(stat.name.split("/")[2])
    assert names == {"a" * 12, "c" * 12, "COMMIT.json"}


def test_a_commit_that_cannot_be_read_is_no_reason_to_delete(
    storage: Stored, tmp_path: Path
) -> None:
    for step in (10, 20):
        storage.attempt(step)
    (tmp_path / object_names.commit_object(RUN, 20)).write_text("{")
    storage.age("*")
    retain(storage, RUN, Policy(keep=1))
    assert len(list(storage.list(RUN))) == 6


def test_damaged_checkpoints_replace_no_sound_one_and_expire(storage: Stored) -> None:
    for step, letter in ((10, "a"), (20, "b"), (30, "c")):
        storage.attempt(step, letter)
    policy = Policy(keep=1, damaged=frozenset({"b" * 12, "c" * 12}))
    retain(storage, RUN, policy)
    assert committed_steps(storage, RUN) == [30, 20, 10]
    storage.age("c" * 12 + "/*")
    retain(storage, RUN, policy)
    assert committed_steps(storage, RUN) == [20, 10]
    assert storage.steps() == {10, 20}


def test_no_commit_is_read_twice(storage: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save does not read commits again, however many checkpoints are kept."""
    names: list[str] = []
    read_into = storage.read_into
    cache = CommitCache()

    def record(name: str, *arguments: Any) -> None:
        names.append(name)
        read_into(name, *arguments)

    monkeypatch.setattr(storage, "read_into", record)
    for step in (10, 20, 30):
        storage.attempt(step)
        retain(
            storage,
            RUN,
            Policy(keep=9),
            cache=cache,
        )
    for name, step in zip(names, (10, 20, 30), strict=True):
        assert name == object_names.commit_object(RUN, step)


def test_an_expired_commit_is_deleted_before_its_shards(storage: Stored) -> None:
    for step in (10, 20):
        storage.attempt(step)
    assert retain(storage, RUN, Policy(keep=1))[0] == object_names.commit_object(RUN, 10)


@pytest.mark.parametrize("committed", [True, False])
def test_a_checkpoints_objects_are_deleted_in_parallel(
    storage: Stored, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """One after the other, thousands of requests would hold up the save after this one."""
    storage.attempt(10, committed=committed)
    storage.attempt(20)
    if not committed:
        storage.age("step-0000000010/*/*")
    delete = storage.delete
    both = threading.Barrier(2)

    def delete_with_another(name: str) -> None:
        if not name.endswith("COMMIT.json"):
            both.wait(10.0)
        delete(name)

    monkeypatch.setattr(storage, "delete", delete_with_another)
    deleted = retain(storage, RUN, Policy(keep=1))
    assert len(deleted) == 2 + committed
    assert storage.steps() == {20}
