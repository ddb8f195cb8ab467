"""The wire between a worker and its predicting process: a JSON header, then raw bodies. Nothing is unpickled."""

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, cast

_LENGTH = struct.Struct(">I")
MAX_HEADER_BYTES = 1024 * 1024 * 1024  # values of the largest micro-batch


def send(link: socket.socket, header: Mapping[str, object], bodies: Sequence[bytes] = ()) -> None:
    link.sendall(encoded(header, bodies))


def encoded(header: Mapping[str, object], bodies: Sequence[bytes] = ()) -> bytes:
    """ValueError or TypeError for a header that JSON cannot hold."""
    head = json.dumps({**header, "sizes": [len(body) for body in bodies]}, allow_nan=False).encode()
    return b"".join((_LENGTH.pack(len(head)), head, *bodies))


def receive(link: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    """EOFError when the other side is gone."""
    (length,) = _LENGTH.unpack(_exactly(link, _LENGTH.size))
    header = json.loads(_exactly(link, length))
    return header, [bytes(_exactly(link, size)) for size in header.pop("sizes")]


def pop_message(data: bytearray) -> dict[str, Any] | None:
    """The header of the first whole message in `data`, one without bodies, removed from it; None: not there yet.

    ValueError or RecursionError when it cannot be read; the next one can. EOFError when no other can.
    """
    if len(data) < _LENGTH.size:
        return None
    end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    if end > MAX_HEADER_BYTES:
        raise EOFError("no message of ours is so long")  # and what follows cannot be found
    if len(data) < end:
        return None
    head = bytes(data[_LENGTH.size : end])
    del data[:end]
    message = json.loads(head)
    if not isinstance(message, dict):
        raise ValueError("a message is an object")
    return cast("dict[str, Any]", message)


def _exactly(link: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            count = link.recv_into(view)
        except ConnectionError:
            raise EOFError from None
        if not count:
            raise EOFError
        view = view[count:]
    return data
