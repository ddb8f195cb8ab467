"""Reads the points of an offline W&B run from its file, whose end a dead process may have left
incomplete.

The file is a log in blocks of 32 KiB: 7 bytes of header for the whole, then pieces of records, each
with checksum, length and kind. A record is a protocol buffer of W&B.
"""

import json
from collections.abc import Iterator
from pathlib import Path

_BLOCK_BYTES = 32768
_FILE_HEADER_BYTES = 7
_PIECE_HEADER_BYTES = 7
_FULL = 1
_FIRST = 2
_MIDDLE = 3
_LAST = 4
_OWN_KEYS = "_"
"""W&B's own values, such as _step and _timestamp, begin with it."""


def read_history(file: Path) -> dict[int, dict[str, float]]:
    """Returns the numbers of each step."""
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record

    rows: dict[int, dict[str, float]] = {}
    for content in _records(file.read_bytes()):
        try:
            record = Record.FromString(content)
        except DecodeError:
            break
        if record.WhichOneof("record_type") != "history":
            continue
        row: dict[str, float] = {}
        step = record.history.step.num
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            value = json.loads(item.value_json)
            if name == "_step":
                step = int(value)
            if not name.startswith(_OWN_KEYS) and isinstance(value, int | float):
                row[name] = value
        rows.setdefault(step, {}).update(row)
    return rows


def _records(content: bytes) -> Iterator[bytes]:
    position = _FILE_HEADER_BYTES
    parts = b""
    while position < len(content):
        room = _BLOCK_BYTES - position % _BLOCK_BYTES
        if room < _PIECE_HEADER_BYTES:
            position += room
            continue
        header = content[position : position + _PIECE_HEADER_BYTES]
        length = int.from_bytes(header[4:6], "little")
        kind = header[6] if len(header) == _PIECE_HEADER_BYTES else 0
        start = position + _PIECE_HEADER_BYTES
        piece = content[start : start + length]
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or len(piece) < length:
            return
        parts = piece if kind in (_FULL, _FIRST) else parts + piece
        if kind in (_FULL, _LAST):
            yield parts
        position = start + length
