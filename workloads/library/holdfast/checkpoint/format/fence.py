"""The fence: of several trainers under one run name only the one that began last may commit.

Each start creates the object of the next number, create-only, so that two starts cannot share one;
an uploader looks for a higher number before it commits. Between its look and its commit another
start may come: such a commit carries the older number, and gives way where the newer trainer
commits the same step.

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

# A few are left, for people who ask who ran when; the newest must stay, or its number would be
# given again.
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


def take(storage: Storage, run: str, *, gang: str = "") -> int:
    """The number of this start: higher than that of every start before it. `gang`: the elastic gang
    that starts.
    """
    while True:
        numbers = _numbers(storage, run)
        number = (numbers[-1] if numbers else 0) + 1
        # For the message that a fenced trainer logs; the number alone decides.
        about = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": int(time.time()),
            "gang": gang,
        }
        # Taken meanwhile by another start, or by an earlier try of this one whose answer was lost:
        # the next, then.
        with suppress(AlreadyExists):
            put_new(storage, object_names.epoch_object(run, number), json.dumps(about).encode())
            with suppress(StorageError):
                for old in numbers[: -KEPT + 1]:
                    storage.delete(object_names.epoch_object(run, old))
            return number


def check(storage: Storage, run: str, own: int) -> None:
    """Raises Fenced if a trainer began after the one of number `own`. 0: there is no fence."""
    newest = max(_numbers(storage, run), default=0) if own else 0
    if newest > own:
        raise Fenced(
            f"another trainer writes run {run}: {_about(storage, run, newest)}, this one began"
            " before it"
        )


def _numbers(storage: Storage, run: str) -> list[int]:
    return numbers_below(storage, object_names.epochs_prefix(run))


def newest_gang(storage: Storage, run: str) -> str:
    """The gang of the newest start; empty where it is none, or cannot be read."""
    try:
        return str(_read(storage, run, max(_numbers(storage, run), default=0))["gang"])
    except UNREADABLE:
        return ""


def _about(storage: Storage, run: str, number: int) -> str:
    try:
        body = _read(storage, run, number)
        return f"start {number}, process {int(body['pid'])} on {str(body['host'])[:80]}"
    except UNREADABLE:
        return f"start {number}"


def _read(storage: Storage, run: str, number: int) -> Any:
    return json.loads(
        read_object(storage, object_names.epoch_object(run, number), limit=MAX_EPOCH_BYTES)
    )
