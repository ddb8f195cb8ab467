"""The binary tensor extension of the protocol: tensors as bytes behind the JSON, little endian. Pure.

Source: Triton, Binary Tensor Data Extension. A text is its length in four bytes, then its bytes.
"""

import struct
from collections.abc import Sequence
from typing import cast

from holdfast.inference.errors import Refused

SIZE = "binary_data_size"
LENGTH_HEADER = "inference-header-content-length"
_CODES = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
_LENGTH = struct.Struct("<I")


class Blobs:
    """What follows the JSON, taken tensor by tensor."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def take(self, size: object) -> memoryview:
        if type(size) is not int or not 0 <= size <= len(self._data):
            raise Refused(400, f"{SIZE} must be the bytes of its tensor; {len(self._data)} are left")
        found, self._data = self._data[:size], self._data[size:]
        return found

    def end(self) -> None:
        if self._data:
            raise Refused(400, f"{len(self._data)} bytes behind the last tensor")


def split(body: bytes, length: str | None) -> tuple[bytes, Blobs]:
    """The JSON and what follows it; `length` is the header's."""
    if length is None:
        return body, Blobs(memoryview(b""))
    if not length.isascii() or not length.isdecimal() or len(length) > 9 or int(length) > len(body):
        raise Refused(400, f"{LENGTH_HEADER} must be the bytes of the JSON, at most those of the body")
    return body[: int(length)], Blobs(memoryview(body)[int(length) :])


def values(datatype: str, count: int, data: memoryview) -> list[object]:
    """`count` of them; texts as bytes."""
    if datatype == "BYTES":
        found = _texts(data, count)
    else:
        form = f"<{count}{_CODES[datatype]}"
        found = list(struct.unpack(form, data)) if struct.calcsize(form) == len(data) else []
    if len(found) != count:
        raise Refused(400, f"{len(data)} bytes are not {count} values of {datatype}")
    return found


def _texts(data: memoryview, most: int) -> list[object]:
    found, at = list[object](), 0
    while at + _LENGTH.size <= len(data) and len(found) < most:
        begin = at + _LENGTH.size
        at = begin + _LENGTH.unpack_from(data, at)[0]
        found.append(bytes(data[begin:at]))
    return found if at == len(data) else []


def encoded(datatype: str, column: Sequence[object]) -> bytes:
    if datatype != "BYTES":
        return struct.pack(f"<{len(column)}{_CODES[datatype]}", *column)
    texts = [cast("str", text).encode() for text in column]
    return b"".join(_LENGTH.pack(len(text)) + text for text in texts)
