"""The wire between a worker and its predicting process: a JSON header, then raw bodies. Nothing is
unpickled.

An answer is checked in the worker: the predicting process runs a model's code, which is not ours.
"""

import json
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, cast

from holdfast.inference.errors import ItemFault, LoaderFailed, PredictorBroken
from holdfast.inference.values import Value
from holdfast.support.errors import InputError

_LENGTH = struct.Struct(">I")
MAX_HEADER_BYTES = 1024 * 1024 * 1024  # values of the largest micro-batch


def encoded(header: Mapping[str, object], bodies: Sequence[bytes] = ()) -> bytes:
    """ValueError or TypeError for a header that JSON cannot hold."""
    head = json.dumps(
        {
            **header,
            "sizes": [len(body) for body in bodies],
        },
        allow_nan=False,
    ).encode()
    return b"".join((_LENGTH.pack(len(head)), head, *bodies))


def receive(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """EOFError or ConnectionError when the other side has closed."""
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    header = json.loads(_exactly(stream, length))
    return header, [_exactly(stream, size) for size in header.pop("sizes")]


def pop_message(data: bytearray) -> dict[str, Any] | None:
    """The header of the first whole message in `data`, one without bodies, removed from it; None:
    not there yet.

    ValueError or RecursionError when it cannot be read; the next one can. EOFError when no other
    can.
    """
    if len(data) < _LENGTH.size:
        return None
    end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    if end > MAX_HEADER_BYTES:
        raise EOFError("no valid message is that long")  # and what follows cannot be found
    if len(data) < end:
        return None
    head = bytes(data[_LENGTH.size : end])
    del data[:end]
    message = json.loads(head)
    if not isinstance(message, dict):
        raise ValueError("a message is an object")
    return cast("dict[str, Any]", message)


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


_READ_BYTES = 1024 * 1024


class Link:
    """The worker's end: a request may be sent while another is answered.

    Both ends could wait in a send for each other, each with a full pipe: so this one never waits in
    a send. What does not fit goes out while an answer is awaited.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._unsent = bytearray()
        self._unread = bytearray()

    def send(self, frame: bytes) -> None:
        """Never waits. No error when the other end has closed: its earlier answers can still be
        received.
        """
        self._unsent += frame
        self._push()

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """The next answer. EOFError when the other end has closed, TimeoutError when it takes too
        long.
        """
        until = time.monotonic() + timeout_s
        while (answer := pop_message(self._unread)) is None:
            self._pump(until)
        return answer

    def close(self) -> None:
        self._end.close()

    def _pump(self, until: float) -> None:
        poll = select.poll()
        poll.register(self._end, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        ready = poll.poll(max(0.0, until - time.monotonic()) * 1000)
        if not ready:
            raise TimeoutError
        if ready[0][1] & ~select.POLLOUT:
            self._pull()
        self._push()

    def _push(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._end.send(self._unsent)]
        except BlockingIOError:
            return
        except ConnectionError:
            self._unsent.clear()

    def _pull(self) -> None:
        try:
            data = self._end.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            raise EOFError from None
        if not data:
            raise EOFError
        self._unread += data


MAX_CONFIGURATION_CHARS = 64 * 1024
MAX_SECONDS = 1e9
"""Of one answer. An integer in JSON may be too large for a float."""


def raise_error(reply: Mapping[str, Any]) -> None:
    match reply:
        case {
            "input": {"what": str(what), "got": str(got), "allowed": str(allowed), "fix": str(fix)}
        }:
            raise InputError(what, got=got, allowed=allowed, fix=fix)
        case {"broken": str(why)}:
            raise PredictorBroken(why)
        case {"bug": str(why)}:
            raise LoaderFailed(why)
        case {"fault": [str(error_class), str(why)]}:
            raise ItemFault(error_class, why)
        case _:
            return


def values_of(reply: Any, count: int) -> tuple[list[Value], float]:
    """The values of `count` items, and the seconds that predicting them took."""
    if not isinstance(reply, dict):
        raise _unreadable("no object")
    reply = cast("dict[str, Any]", reply)
    raise_error(reply)
    values = reply.get("values")
    seconds = reply.get("seconds")
    if not isinstance(values, list) or not all(
        isinstance(value, dict) for value in cast("list[object]", values)
    ):
        raise _unreadable("values must be a list of objects")
    if len(cast("list[object]", values)) != count:
        raise _unreadable(f"{len(cast('list[object]', values))} values for {count} items")
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 <= seconds < MAX_SECONDS
    ):
        raise _unreadable("seconds must be a number")
    return cast("list[Value]", values), float(seconds)


def configuration_of(found: object) -> dict[str, object]:
    """Part of every result's key, so it must be the same in JSON as in memory."""
    if isinstance(found, Mapping):
        found = dict(cast("Mapping[str, object]", found))
    try:
        text = json.dumps(found, allow_nan=False)
        same = (
            isinstance(found, dict)
            and json.loads(text) == found
            and len(text) <= MAX_CONFIGURATION_CHARS
        )
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        raise InputError(
            "the predictor's configuration cannot be stored",
            got=type(found).__name__,
            allowed=(
                "an object of plain JSON values with text for keys, at most"
                f" {MAX_CONFIGURATION_CHARS} characters"
            ),
            fix="remove values that do not affect results",
        )
    return cast("dict[str, object]", found)


def _unreadable(why: str) -> ItemFault:
    return ItemFault("ValueError", f"an answer cannot be read: {why}")
