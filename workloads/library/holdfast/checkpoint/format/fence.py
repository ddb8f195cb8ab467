"""The fence: of several trainers of one run, only the one that started last may commit.

Each start creates the object of the next number, create-only, so that two starts cannot share a
number. A commit is first written as a draft, which has the number of its start in its name. Then
the uploader looks for a higher number, and moves the draft to the name of the commit. A new start
takes its number and then deletes the drafts of older starts. A trainer that was stopped between
look and move therefore finds its draft deleted; one that writes its draft later sees the number.

Decisions: infra/decisions/0028, infra/decisions/0180.
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

    No earlier start can commit any more. `gang` names the elastic gang that starts.
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
            # Only after the number exists, or an older start could write its draft in between.
            _delete_older_drafts(storage, run, number)
            _delete_epochs(storage, run, numbers[: -KEPT + 1])
            return number


def _delete_older_drafts(
    storage: Storage,
    run: str,
    number: int,
) -> None:
    prefix = object_names.drafts_prefix(run)
    for stat in list(storage.list(prefix)):
        start, _, _ = stat.name.removeprefix(f"{prefix}/").partition("-")
        # This start may have been stopped before the listing: a newer one may have drafts.
        if start.isdecimal() and int(start) < number:
            storage.delete(stat.name)


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
