"""Keeps digests of what a rank computed in a memory of its launcher, which outlives the rank.

The file is a ring of records of four integers (epoch, step, shard, digest) after two of its own:
the number of records ever written, and the step of which this rank's results were wrong, plus one.
"""

import os
import struct
from typing import NamedTuple

CAPACITY = 8_192
"""Records that are kept: hundreds of steps, and a gang loses those since the newest copy."""
_RECORD = struct.Struct("<4q")
_NUMBER = struct.Struct("<q")
_WRONG_AT = _NUMBER.size
_HEAD_BYTES = 2 * _NUMBER.size
FILE_BYTES = _HEAD_BYTES + CAPACITY * _RECORD.size


class Note(NamedTuple):
    epoch: int
    """Epoch of the gang in which it was computed."""
    step: int
    shard: int
    digest: int


class ShardNotes:
    def __init__(self, descriptor: int) -> None:
        """`descriptor` is that of a file of zeros, or of notes."""
        self._descriptor = descriptor
        self._count = _read_number(descriptor, 0)

    def add(self, note: Note) -> None:
        place = self._count % CAPACITY
        os.pwrite(self._descriptor, _RECORD.pack(*note), _HEAD_BYTES + place * _RECORD.size)
        self._count += 1
        # Last: a rank may be killed between two writes.
        os.pwrite(self._descriptor, _NUMBER.pack(self._count), 0)

    def read(self) -> list[Note]:
        """Returns the notes that are kept, in no order."""
        length = min(self._count, CAPACITY) * _RECORD.size
        data = os.pread(self._descriptor, length, _HEAD_BYTES)
        return [Note(*fields) for fields in _RECORD.iter_unpack(data)]

    def drop_after(self, step: int) -> None:
        """Drops notes of later steps: they began with a state that was wrong."""
        earlier_notes = [note for note in self.read() if note.step <= step]
        self._count = 0
        for note in earlier_notes:
            self.add(note)
        os.pwrite(self._descriptor, _NUMBER.pack(self._count), 0)

    def mark_wrong(self, step: int) -> None:
        """Tells the launcher that this rank's results of a step were wrong."""
        os.pwrite(self._descriptor, _NUMBER.pack(step + 1), _WRONG_AT)


def read_wrong_step(descriptor: int) -> int | None:
    """Returns the step of which the rank's results were wrong; None if there is none."""
    number = _read_number(descriptor, _WRONG_AT)
    return number - 1 if number else None


def _read_number(descriptor: int, offset: int) -> int:
    data = os.pread(descriptor, _NUMBER.size, offset)
    return _NUMBER.unpack(data)[0] if len(data) == _NUMBER.size else 0
