"""Shards that a node holds, and the slots for those that it keeps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.format import Manifest, hex_digest
from holdfast.checkpoint.peers.keeper_client import Version
from holdfast.checkpoint.peers.protocol import Head
from holdfast.checkpoint.peers.rooms import Room
from holdfast.support.errors import HoldfastError

SLOTS = 2
"""One complete copy, and one that arrives."""


class Refused(HoldfastError):
    """The keeper refuses a question; the text goes to the peer that asked."""


@dataclass(kw_only=True, slots=True)
class StoredShard:
    """A shard of one rank, in a staging memory or as a copy."""

    manifest: Manifest
    payload: bytes
    """The manifest as it was sent."""
    data: memoryview
    start: int
    """Number of the trainer's start, as in its commits."""
    memory: int = -1
    """Number of the staging memory of this node's rank; -1: a copy."""
    local: int = -1
    """Local rank of this node that staged it; -1: a copy."""

    @property
    def version(self) -> Version:
        return self.manifest.step, self.manifest.attempt

    def describe(self) -> Head:
        return {
            "rank": self.manifest.rank,
            "step": self.manifest.step,
            "attempt": self.manifest.attempt,
            "world_size": self.manifest.world_size,
            "length": len(self.payload),
            "sha256": hex_digest(self.payload),
            "bytes": self.manifest.length,
            "start": self.start,
            "memory": self.memory,
            "local": self.local,
        }

    def find_object(self, name: str) -> memoryview | None:
        """Returns the bytes of a manifest or of a shard by its object name; None: not of these."""
        if name == self.manifest.name:
            return memoryview(self.payload)
        for index, stretch in enumerate(self.manifest.stretches()):
            if name == self.manifest.shard_name(index):
                return self.data[stretch]
        return None


@dataclass(slots=True)
class Slot:
    """Room for one copy. While another arrives it has no shard."""

    room: Room | None = None
    shard: StoredShard | None = None
    arriving: bool = False

    @property
    def size(self) -> int:
        return len(self.room.data) if self.room else 0

    def release(self) -> None:
        """Gives the copy and its room up."""
        self.shard = None
        self.room = None


def make_slots() -> list[Slot]:
    return [Slot() for _ in range(SLOTS)]


def choose_slot(
    slots: Sequence[Slot],
    version: Version,
    keep: tuple[Any, ...],
) -> Slot:
    """Chooses which of a rank's slots to overwrite with `version`; never the one that holds `keep`.

    Raises Refused if `version` is there already, or no slot is free.
    """
    free_slots: list[Slot] = []
    for slot in slots:
        if slot.shard and slot.shard.version == version:
            raise Refused(f"a copy of step {version[0]} is there already")
        is_needed = slot.shard is not None and slot.shard.version == keep
        if not slot.arriving and not is_needed:
            free_slots.append(slot)
    if not free_slots:
        raise Refused("another copy of this rank is arriving")
    # The older of two that are complete: a neighbor may need the newer one in a moment.
    return min(free_slots, key=get_step)


def get_step(slot: Slot) -> int:
    return slot.shard.version[0] if slot.shard else -1


def check_epoch(message_epoch: int, node_epoch: int) -> None:
    """Raises Refused if a message is from another epoch."""
    if message_epoch != node_epoch:
        raise Refused(
            f"the message is from epoch {message_epoch}, and this node is in epoch {node_epoch}"
        )


def check_room(
    rank: int,
    length: int,
    count: int,
    free: int,
) -> None:
    """Raises Refused, with the arithmetic, unless `count` more copies of `length` bytes fit."""
    needed = count * length
    if needed > free:
        size = f"{count} copies of {length / 1e6:.0f} MB"
        raise Refused(
            f"rank {rank} needs {size}, {needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free"
        )
