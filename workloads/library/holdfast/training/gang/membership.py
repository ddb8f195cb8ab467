"""Who belongs to the gang: epochs, each an object in the checkpoint storage that is created once
and never changed.

Two halves of a torn network both propose the next number; the store takes one, and the other half
reads that it is out. So there is no split brain, and no service apart from the bucket.
"""

# Why it is so: infra/decisions/0035.

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.checkpoint.errors import AlreadyExists, NotFound, StorageError
from holdfast.checkpoint.stores import Storage, numbers_below, put_new, read_object
from holdfast.support import object_names
from holdfast.support.errors import InputError

KEPT = 20
# The bucket is not this program's alone: an object of such a name may have any size.
MAX_EPOCH_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    index: int
    """Place in the Job; a replacement has the same."""
    incarnation: str
    """New for each process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    number: int
    members: tuple[Member, ...]
    """By index; a member's rank is its position."""
    ending: bool = False
    """Too few are left: store the state, give the nodes back."""

    @property
    def lead(self) -> Member:
        return self.members[0]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Any) -> "Epoch":
        """Raises ValueError, KeyError, TypeError or OverflowError for anything that is no epoch."""
        members = tuple(
            Member(index=int(m["index"]), incarnation=str(m["incarnation"]))
            for m in body["members"]
        )
        # A rank is a position in this list: in another order two members would take each other's.
        if not members or [m.index for m in members] != sorted({m.index for m in members}):
            raise ValueError("members are not in the order of their index")
        return cls(
            number=int(body["number"]),
            members=members,
            ending=bool(body["ending"]),
        )


def newest_number(storage: Storage, run: str) -> int:
    return max(numbers_below(storage, object_names.gang_prefix(run)), default=0)


def propose(storage: Storage, run: str, epoch: Epoch) -> Epoch:
    """The epoch of that number: this one, or the one that another proposer was faster with."""
    try:
        put_new(
            storage,
            object_names.gang_object(run, epoch.number),
            json.dumps(epoch.to_json()).encode(),
        )
    # Also where an earlier try of this proposer was stored and its answer was lost.
    except AlreadyExists:
        return read_epoch(storage, run, epoch.number)
    # The epoch is committed already: a storage that refuses to tidy up must not cost the gang a
    # try.
    with suppress(StorageError):
        for old in numbers_below(storage, object_names.gang_prefix(run))[:-KEPT]:
            storage.delete(object_names.gang_object(run, old))
    return epoch


def read_epoch(storage: Storage, run: str, number: int) -> Epoch:
    """Raises InputError for an object that holds no epoch of that number."""
    name = object_names.gang_object(run, number)
    try:
        epoch = Epoch.from_json(json.loads(read_object(storage, name, limit=MAX_EPOCH_BYTES)))
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
