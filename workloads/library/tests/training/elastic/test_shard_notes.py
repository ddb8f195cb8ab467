"""Notes of a rank outlive it, are bounded, and lose what began with a wrong state."""

import os
from collections.abc import Iterator

import pytest

from holdfast.training.sharded import shard_notes
from holdfast.training.sharded.shard_notes import (
    FILE_BYTES,
    Note,
    ShardNotes,
    read_wrong_step,
)


@pytest.fixture
def descriptor() -> Iterator[int]:
    notes = os.memfd_create("notes")
    os.ftruncate(notes, FILE_BYTES)
    yield notes
    os.close(notes)


def add_steps(descriptor: int, *steps: int) -> None:
    """Adds a note of each step, as a rank that has just started."""
    notes = ShardNotes(descriptor)
    for step in steps:
        notes.add(Note(epoch=1, step=step, shard=0, digest=step + 1))


def read_steps(descriptor: int) -> list[int]:
    return sorted(note.step for note in ShardNotes(descriptor).read())


def test_the_next_rank_reads_the_notes_and_adds_its_own(descriptor: int) -> None:
    assert read_steps(descriptor) == []
    add_steps(descriptor, 3, 4)
    add_steps(descriptor, 5)
    assert read_steps(descriptor) == [3, 4, 5]


def test_the_newest_notes_are_kept(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_notes, "CAPACITY", 4)
    add_steps(descriptor, *range(10))
    assert read_steps(descriptor) == [6, 7, 8, 9]


def test_notes_after_a_wrong_step_are_dropped(descriptor: int) -> None:
    add_steps(descriptor, 3, 4, 5, 6)
    ShardNotes(descriptor).drop_after(4)
    assert read_steps(descriptor) == [3, 4]
    add_steps(descriptor, 5)
    assert read_steps(descriptor) == [3, 4, 5]


def test_the_launcher_learns_which_step_was_wrong(descriptor: int) -> None:
    assert read_wrong_step(descriptor) is None
    ShardNotes(descriptor).mark_wrong(0)
    assert read_wrong_step(descriptor) == 0
