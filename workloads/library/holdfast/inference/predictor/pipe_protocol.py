"""The protocol between a worker and its predicting process: a JSON header, then raw bodies.

Nothing is unpickled. The worker checks each reply, as the predicting process runs a model's code,
which is not ours.
"""

import json
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, cast

from holdfast.inference.errors import ItemFault, LoaderFailed, PredictorBroken
from holdfast.inference.values import DATATYPES, Value
from holdfast.support.errors import InputError

_LENGTH = struct.Struct(">I")
MAX_HEADER_BYTES = 1024 * 1024 * 1024  # for the values of the largest micro-batch


def encode(header: Mapping[str, object], bodies: Sequence[bytes] = ()) -> bytes:
    """Encodes a message. Raises ValueError or TypeError for a header that JSON cannot hold."""
    sizes = [len(body) for body in bodies]
    text = json.dumps(
        {**header, "sizes": sizes},
        allow_nan=False,
    )
    head = text.encode()
    return b"".join((_LENGTH.pack(len(head)), head, *bodies))


def receive(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """Receives a header and its bodies.

    Raises EOFError or ConnectionError if the other side has closed.
    """
    (length,) = _LENGTH.unpack(_receive_exactly(stream, _LENGTH.size))
    header = json.loads(_receive_exactly(stream, length))
    sizes = header.pop("sizes")
    return header, [_receive_exactly(stream, size) for size in sizes]


def pop_message(data: bytearray) -> dict[str, Any] | None:
    """Removes the first message from `data`, one without bodies, and returns its header.

    Returns None if it is not complete. Raises ValueError or RecursionError if it cannot be parsed,
    which does not affect the next one; EOFError if the following messages cannot be found either.
    """
    if len(data) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + length
    if end > MAX_HEADER_BYTES:
        raise EOFError("no valid message is that long")
    if len(data) < end:
        return None
    head = bytes(data[_LENGTH.size : end])
    del data[:end]
    message = json.loads(head)
    if not isinstance(message, dict):
        raise ValueError("a message is an object")
    return cast("dict[str, Any]", message)


def _receive_exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


_READ_BYTES = 1024 * 1024
SMALL_BYTES = 64 * 1024
"""The size up to which a message fits in the pipe, and is encoded and parsed in no time."""


class Link:
    """The worker's end of the pipe: a request may be sent while another one is computed.

    With full pipes both ends could block in a send, so this one never does: data that does not fit
    is sent while a reply is awaited.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._unsent = bytearray()
        self._unread = bytearray()

    def send(self, frame: bytes) -> None:
        """Sends a frame without blocking.

        Raises no error if the other end has closed, as its earlier replies can still be received.
        """
        self._unsent += frame
        self._push()

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Returns the next reply.

        Raises EOFError if the other end has closed, TimeoutError if it takes too long.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            reply = pop_message(self._unread)
            if reply is not None:
                return reply
            self._pump(deadline)

    def fileno(self) -> int:
        return self._end.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def pull(self) -> bool:
        """Receives what has arrived; returns False if the rest of a small reply must arrive.

        It does not block. True does not say that there is a reply: the next one may be large or no
        valid message, and the other end may have closed.
        """
        try:
            self._pull()
        except EOFError:
            return True
        return self._reply_bytes > SMALL_BYTES or self.has_small_reply

    @property
    def has_small_reply(self) -> bool:
        """Says if `receive` returns at once, with a reply that takes no time to parse."""
        return self._reply_bytes <= min(SMALL_BYTES, len(self._unread) - _LENGTH.size)

    @property
    def _reply_bytes(self) -> int:
        """The length of the next reply; 0 if it is not known yet."""
        if len(self._unread) < _LENGTH.size:
            return 0
        (length,) = _LENGTH.unpack_from(self._unread)
        return length

    def close(self) -> None:
        self._end.close()

    def _pump(self, deadline: float) -> None:
        events = select.POLLIN
        if self._unsent:
            events |= select.POLLOUT
        poll = select.poll()
        poll.register(self._end, events)
        rest_s = max(0.0, deadline - time.monotonic())
        ready = poll.poll(rest_s * 1000)
        if not ready:
            raise TimeoutError
        (_, ready_events) = ready[0]
        if ready_events & ~select.POLLOUT:
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
MAX_INPUT_VALUES = 1_000_000
"""The maximum for one item that a predictor describes."""
MAX_SECONDS = 1e9
"""The maximum of one reply: an integer in JSON may be too large for a float."""


def raise_error(reply: Mapping[str, Any]) -> None:
    """Raises the error that a reply reports, if it does."""
    match reply:
        case {
            "input": {"what": str(what), "got": str(got), "allowed": str(allowed), "fix": str(fix)}
        }:
            raise InputError(what, got=got, allowed=allowed, fix=fix)
        case {"broken": str(message)}:
            raise PredictorBroken(message)
        case {"bug": str(message)}:
            raise LoaderFailed(message)
        case {"fault": [str(error_class), str(message)]}:
            raise ItemFault(error_class, message)
        case _:
            return


def parse_values(reply: Any, count: int) -> tuple[list[Value], float]:
    """Returns the values of `count` items, and the seconds that predicting them took.

    Raises the reply's error, or ItemFault for a reply that is not valid.
    """
    if not isinstance(reply, dict):
        raise _invalid_reply("no object")
    reply = cast("dict[str, Any]", reply)
    raise_error(reply)
    values = _check_values(reply.get("values"), count)
    return values, _check_seconds(reply.get("seconds"))


def _check_values(values: object, count: int) -> list[Value]:
    if not isinstance(values, list):
        raise _invalid_reply("values must be a list of objects")
    values = cast("list[object]", values)
    if not all(isinstance(value, dict) for value in values):
        raise _invalid_reply("values must be a list of objects")
    if len(values) != count:
        raise _invalid_reply(f"{len(values)} values for {count} items")
    return cast("list[Value]", values)


def _check_seconds(seconds: object) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _invalid_reply("seconds must be a number")
    if not 0 <= seconds < MAX_SECONDS:
        raise _invalid_reply("seconds must be a number")
    return float(seconds)


def normalize_configuration(configuration: object) -> dict[str, object]:
    """Returns a predictor's configuration as a dict.

    It is part of every result's key. Raises InputError if it is not the same in JSON as in memory.
    """
    if isinstance(configuration, Mapping):
        configuration = dict(cast("Mapping[str, object]", configuration))
    if not _survives_json(configuration):
        raise InputError(
            "the predictor's configuration cannot be stored",
            got=type(configuration).__name__,
            allowed=(
                "an object of plain JSON values with text for keys, at most"
                f" {MAX_CONFIGURATION_CHARS} characters"
            ),
            fix="remove values that do not affect results",
        )
    return cast("dict[str, object]", configuration)


def check_inputs(inputs: object) -> list[dict[str, object]]:
    """Returns a predictor's description of its inputs; it is empty if there is none.

    Raises InputError for anything else than tensors as in the protocol's metadata.
    """
    if not isinstance(inputs, list | tuple):
        raise _invalid_inputs(inputs)
    checked: list[dict[str, object]] = []
    for tensor in cast("Sequence[object]", inputs):
        match tensor:
            case {"name": str(name), "datatype": str(datatype), "shape": [-1, *sizes]}:
                pass
            case _:
                raise _invalid_inputs(tensor)
        if datatype not in DATATYPES or not _are_sizes(sizes):
            raise _invalid_inputs(tensor)
        checked.append({"name": name, "datatype": datatype, "shape": [-1, *sizes]})
    if len({tensor["name"] for tensor in checked}) < len(checked):
        raise _invalid_inputs(inputs)
    return checked


def _are_sizes(sizes: Sequence[object]) -> bool:
    """Returns whether each is a size or -1, and one item has no more than MAX_INPUT_VALUES."""
    count = 1
    for size in sizes:
        if type(size) is not int or size == 0 or size < -1:
            return False
        count *= abs(size)
    return count <= MAX_INPUT_VALUES


def _invalid_inputs(got: object) -> InputError:
    return InputError(
        "the predictor's description of its inputs is not valid",
        got=repr(got)[:300],
        allowed=(
            "a list of objects with different names, such as"
            ' {"name": "x", "datatype": "FP32", "shape": [-1, 4]}; the first size is -1;'
            f" datatypes: {', '.join(DATATYPES)}"
        ),
        fix="change `inputs` of the predictor, or remove it",
    )


def _survives_json(configuration: object) -> bool:
    try:
        text = json.dumps(configuration, allow_nan=False)
        copy = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return False
    if not isinstance(configuration, dict) or len(text) > MAX_CONFIGURATION_CHARS:
        return False
    return copy == configuration


def _invalid_reply(message: str) -> ItemFault:
    return ItemFault("ValueError", f"a reply is not valid: {message}")
