"""Membership of a gang: epochs, each an immutable object in the checkpoint storage.

After a network partition both sides propose the next number; the storage accepts one, and the other
side reads that it is out. So there is no split brain, and no service apart from the bucket.
"""

# Why it is so: infra/decisions/0035.

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.checkpoint.errors import AlreadyExists, NotFound, StorageError
from holdfast.checkpoint.stores import Storage, numbers_below, put_new, read_object
from holdfast.support import object_names
from holdfast.support.errors import InputError

KEPT_EPOCHS = 20
# Other programs may write to the bucket too: an object of such a name may have any size.
MAX_EPOCH_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    index: int
    """Number of the member in the Job; a replacement has the same."""
    incarnation: str
    """Random identity of the process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    number: int
    members: tuple[Member, ...]
    """Members sorted by index; a member's rank is its position."""
    ending: bool = False
    """True if too few members remain: they store the state and release their nodes."""

    @property
    def lead(self) -> Member:
        return self.members[0]

    def divide_ranks(self, member: Member, processes: int) -> tuple[range, int]:
        """Returns the ranks of a member's processes, and the number of ranks of the epoch."""
        first = processes * self.members.index(member)
        return range(first, first + processes), processes * len(self.members)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Any) -> "Epoch":
        """Raises ValueError, KeyError, TypeError or OverflowError if `body` is no epoch."""
        members = list[Member]()
        for entry in body["members"]:
            member = Member(
                index=int(entry["index"]),
                incarnation=str(entry["incarnation"]),
            )
            members.append(member)
        # A rank is a position in this list: in another order two members would take each other's.
        indices = [member.index for member in members]
        if not indices or indices != sorted(set(indices)):
            raise ValueError("members are not in the order of their index")
        return cls(
            number=int(body["number"]),
            members=tuple(members),
            ending=bool(body["ending"]),
        )


def newest_number(storage: Storage, run: str) -> int:
    """Returns the number of the newest epoch, or 0 if there is none."""
    prefix = object_names.gang_prefix(run)
    return max(numbers_below(storage, prefix), default=0)


def propose(
    storage: Storage,
    run: str,
    epoch: Epoch,
) -> Epoch:
    """Returns the epoch of that number: `epoch`, or that of another proposer that was faster.

    If the gang is further, returns its newest epoch.
    """
    name = object_names.gang_object(run, epoch.number)
    try:
        put_new(storage, name, json.dumps(epoch.to_json()).encode())
    # This happens too if an earlier try of this proposer was stored and its answer was lost.
    except AlreadyExists:
        return read_epoch(storage, run, epoch.number)
    newest = epoch.number
    # The epoch is committed: a storage that refuses to delete must not cost the gang a try.
    with suppress(StorageError):
        numbers = numbers_below(storage, object_names.gang_prefix(run))
        newest = max(numbers, default=newest)
        _delete_epochs(storage, run, numbers[:-KEPT_EPOCHS])
    # Then the object of that number was deleted before, and a lead that was frozen made it again.
    if newest > epoch.number:
        return read_epoch(storage, run, newest)
    return epoch


def _delete_epochs(storage: Storage, run: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        storage.delete(object_names.gang_object(run, number))


def read_epoch(
    storage: Storage,
    run: str,
    number: int,
) -> Epoch:
    """Reads an epoch. Raises InputError if the object holds no epoch of that number."""
    name = object_names.gang_object(run, number)
    try:
        content = read_object(storage, name, limit=MAX_EPOCH_BYTES)
        epoch = Epoch.from_json(json.loads(content))
        if epoch.number != number:
            raise ValueError(f"it says number {epoch.number}")
    except (
        ValueError,
        KeyError,
        TypeError,
        OverflowError,
        EOFError,
        NotFound,
        RecursionError,
    ) as error:
        raise InputError(
            "the gang's newest epoch cannot be read",
            got=f"{name}: {error}",
            allowed="a record written by the gang's leader",
            fix="delete that object if no gang of this run is running, or use another run name",
        ) from error
    return epoch
