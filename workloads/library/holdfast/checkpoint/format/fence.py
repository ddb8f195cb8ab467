"""The fence: of several trainers of one run, only the one that started last may commit.

Each start creates the object of the next number, create-only, so that two starts cannot share a
number. An uploader looks for a higher number before it commits. Another trainer may start between
that check and the commit: the commit then carries the older number, and is replaced if the newer
trainer commits the same step.

Decision: infra/decisions/0028.
"""

import json
import os
import socket
import time
from contextlib import suppress
from typing import Any

from holdfast.checkpoint.errors import AlreadyExists, Fenced, StorageError
from holdfast.checkpoint.stores.storage import Storage, numbers_below, put_new, read_object
from holdfast.support import object_names

# A few objects stay, to look up which trainer ran when. The newest must stay, or its number would
# be given again.
KEPT = 5
MAX_EPOCH_BYTES = 4096
UNREADABLE = (
    StorageError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    OverflowError,
    RecursionError,
)


def take(
    storage: Storage,
    run: str,
    *,
    gang: str = "",
) -> int:
    """Take the fence: return a number that is higher than that of every start before.

    `gang` names the elastic gang that starts.
    """
    while True:
        numbers = _list_numbers(storage, run)
        number = (numbers[-1] if numbers else 0) + 1
        # For the message that a fenced trainer logs; the number alone decides.
        description = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": int(time.time()),
            "gang": gang,
        }
        name = object_names.epoch_object(run, number)
        # A taken number belongs to another start, or to an earlier try of this one whose answer
        # was lost: the next round takes the next number.
        with suppress(AlreadyExists):
            put_new(storage, name, json.dumps(description).encode())
            _delete_epochs(storage, run, numbers[: -KEPT + 1])
            return number


def _delete_epochs(
    storage: Storage,
    run: str,
    numbers: list[int],
) -> None:
    with suppress(StorageError):
        for number in numbers:
            storage.delete(object_names.epoch_object(run, number))


def check(
    storage: Storage,
    run: str,
    number: int,
) -> None:
    """Raise Fenced if a trainer started after start `number`. Number 0 has no fence."""
    if not number:
        return
    newest = _newest_number(storage, run)
    if newest > number:
        raise Fenced(
            f"another trainer writes run {run}: {_describe_start(storage, run, newest)}; this"
            " trainer started before it"
        )


def _list_numbers(storage: Storage, run: str) -> list[int]:
    return numbers_below(storage, object_names.epochs_prefix(run))


def _newest_number(storage: Storage, run: str) -> int:
    return max(_list_numbers(storage, run), default=0)


def newest_gang(storage: Storage, run: str) -> str:
    """Return the gang of the newest start; empty if that was no gang, or cannot be read."""
    try:
        return str(
            _read_epoch(
                storage,
                run,
                _newest_number(storage, run),
            )["gang"]
        )
    except UNREADABLE:
        return ""


def _describe_start(
    storage: Storage,
    run: str,
    number: int,
) -> str:
    try:
        body = _read_epoch(storage, run, number)
        pid = int(body["pid"])
        host = str(body["host"])[:80]
        return f"start {number}, process {pid} on {host}"
    except UNREADABLE:
        return f"start {number}"


def _read_epoch(
    storage: Storage,
    run: str,
    number: int,
) -> Any:
    name = object_names.epoch_object(run, number)
    return json.loads(read_object(storage, name, limit=MAX_EPOCH_BYTES))
