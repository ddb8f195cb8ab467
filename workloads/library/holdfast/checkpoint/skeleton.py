"""The grammar of a saved state without its tensors, as tree.py encodes it, and its bounds.

Walked without recursion, so that depth costs no stack; what passes can be decoded.
"""

from collections.abc import Iterator
from typing import Any

Json = Any

# Of JSON: each mapping of a state takes three levels. Decoding is recursive, and Python's stack ends near 1,000.
MAX_DEPTH = 200
FLOATS = ("nan", "inf", "-inf")
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
    if kind == "$float" and content in FLOATS:
        return []
    if kind == "$tuple" and isinstance(content, list):
        return content
    if kind == "$map" and isinstance(content, list):
        return [_item(pair) for pair in content]
    raise ValueError(f"mark {kind[:20]!r} is unknown or holds something else")


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
        if type(notes.get("metric", 0.0)) not in (int, float):
            raise ValueError("notes hold a metric that is no number")
        if not all(type(n) in (int, float) and 0 <= n < 1e15 for n in numbers):
            raise ValueError("notes hold something else than counts and seconds")
