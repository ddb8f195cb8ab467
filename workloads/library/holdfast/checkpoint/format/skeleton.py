"""The grammar of a saved state without its tensors, as values.py encodes it, and its bounds.

Walked without recursion, so that depth costs no stack; what passes can be decoded.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

Json = Any

# Of JSON: each mapping of a state takes three levels. Decoding is recursive, and Python's stack ends near 1,000.
MAX_DEPTH = 200
FLOATS = ("nan", "inf", "-inf")
MAPPINGS = ("$map", "$ordered", "$counter")
# Factories of defaultdict that need no import to be made again; "" means none.
FACTORIES = ("", "int", "float", "bool", "str", "list", "dict", "set")
NUMPY_DTYPES = frozenset(
    ["|b1", "|i1", "|u1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"]
)
_HEX = re.compile("([0-9a-f]{2})*")
# Written by the checkpointer: what it has learnt of this run (plain JSON, no skeleton).
NOTES_KEY = "__notes__"


def check_values(values: Json) -> dict[str, Json]:
    """`values` of a manifest. Raises ValueError."""
    if type(values) is not dict:
        raise ValueError("values are no object")
    tensors_in(values)
    _check_notes(values.get(NOTES_KEY, {}))
    return values


def tensors_in(values: dict[str, Json]) -> set[str]:
    """Keys of the tensors that some values name. Raises ValueError."""
    entries = [entry for name, entry in values.items() if name != NOTES_KEY]
    return {content for kind, content in nodes(entries) if kind == "$tensor"}


def nodes(entries: list[Json]) -> Iterator[tuple[str, Json]]:
    """Every marked node below some skeletons as kind and content. Raises ValueError at what is no skeleton."""
    # A list and no recursion: a forged depth of a million would end the process and not the read.
    waiting = [(entry, 1) for entry in entries]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"values are nested deeper than {MAX_DEPTH}")
        if isinstance(node, list):
            waiting += [(item, depth + 1) for item in node]
        elif isinstance(node, dict):
            kind, content = _mark(node)
            yield kind, content
            waiting += [(item, depth + 1) for item in _below(kind, content)]


def _mark(node: dict[str, Json]) -> tuple[str, Json]:
    if len(node) != 1:
        raise ValueError("a node has more or fewer than one mark")
    return next(iter(node.items()))


def _below(kind: str, content: Json) -> list[Json]:
    if kind == "$tensor" and isinstance(content, str):
        return []
    if kind in _SCALARS and _SCALARS[kind](content):
        return []
    if kind == "$tuple" and isinstance(content, list):
        return content
    if kind in MAPPINGS and isinstance(content, list):
        return [_item(pair) for pair in content]
    if kind == "$default" and _is_pair(content) and content[0] in FACTORIES and isinstance(content[1], list):
        return [_item(pair) for pair in content[1]]
    raise ValueError(f"mark {kind[:20]!r} is unknown or holds something else")


def _is_pair(content: Json) -> bool:
    return isinstance(content, list) and len(content) == 2 and isinstance(content[0], str | int)


def _is_bytes(content: Json) -> bool:
    return isinstance(content, str) and bool(_HEX.fullmatch(content))


def _is_numpy(content: Json) -> bool:
    known = _is_pair(content) and content[0] in NUMPY_DTYPES and _is_bytes(content[1])
    return known and len(content[1]) == 2 * int(content[0][2:])


def _is_size(content: Json) -> bool:
    return isinstance(content, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in content)


_SCALARS: dict[str, Callable[[Json], bool]] = {
    "$float": lambda content: content in FLOATS,
    "$bytes": _is_bytes,
    "$numpy": _is_numpy,
    "$size": _is_size,
}


def _item(pair: Json) -> Json:
    if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) not in (str, int):
        raise ValueError("a mapping holds something else than pairs of a key and a value")
    return pair[1]


def _check_notes(notes: Json) -> None:
    """What restore reads of them without looking again."""
    if type(notes) is not dict:
        raise ValueError("notes are no object")
    if notes:
        hazard = notes["hazard"]
        numbers = [notes["age_s"], *hazard["events"], *hazard["exposure_s"]]
        # Retention ranks by it, and a text would be compared with a number.
        if type(notes.get("metric", 0.0)) not in (int, float):
            raise ValueError("notes hold a metric that is no number")
        if not all(type(n) in (int, float) and 0 <= n < 1e15 for n in numbers):
            raise ValueError("notes hold something else than counts and seconds")
