"""A value: what a predictor computed of one item, plain JSON. Its limits, checked item by item.

In the database one value that cannot be stored would fail its whole micro-batch.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import cast

MAX_VALUE_CHARS = 1024 * 1024
MAX_NESTING = 500
# An escaped NUL, and not a backslash before four digits.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

Value = Mapping[str, object]


def encode_value(value: Value) -> str:
    """The text that is stored; ValueError for what JSON or PostgreSQL cannot hold (NaN, NUL, half a
    surrogate pair).
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if _NUL.search(text) or len(text) > MAX_VALUE_CHARS:
        raise ValueError(f"a value may hold no NUL and at most {MAX_VALUE_CHARS} characters")
    if text.count("[") + text.count("{") > MAX_NESTING and _nesting(value) > MAX_NESTING:
        raise ValueError(f"a value may be nested {MAX_NESTING} deep")
    text.encode()
    return text


def _nesting(value: object) -> int:
    """Level by level: a recursion would end before the depth is known."""
    depth = 0
    level = [value]
    while level := [inner for outer in level for inner in _inside(outer)]:
        depth += 1
    return depth


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return cast("Mapping[str, object]", value).values()
    return cast("Iterable[object]", value) if isinstance(value, list | tuple) else ()
