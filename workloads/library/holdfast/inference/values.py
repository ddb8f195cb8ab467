"""Values, which a predictor computes for items: plain JSON within limits.

They are checked one by one: a value that the database cannot store would fail its micro-batch.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import cast

MAX_VALUE_CHARS = 1024 * 1024
MAX_NESTING = 500
# It matches an escaped NUL, not a backslash before four digits.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

Value = Mapping[str, object]
DATATYPES = (
    "BYTES",
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
)
"""The datatypes of the Open Inference Protocol v2."""


def encode_value(value: Value) -> str:
    """Returns the text to store.

    Raises ValueError for values that JSON or PostgreSQL cannot hold (NaN, NUL, half a surrogate
    pair).
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if _NUL.search(text) or len(text) > MAX_VALUE_CHARS:
        raise ValueError(f"a value may hold no NUL and at most {MAX_VALUE_CHARS} characters")
    # Counting brackets is cheap, and few values have that many.
    brackets = text.count("[") + text.count("{")
    if brackets > MAX_NESTING and _measure_nesting(value) > MAX_NESTING:
        raise ValueError(f"a value may be nested {MAX_NESTING} deep")
    text.encode()
    return text


def _measure_nesting(value: object) -> int:
    """Returns the depth, level by level: a recursion would fail before the depth is known."""
    depth = 0
    level = list(_children(value))
    while level:
        depth += 1
        next_level: list[object] = []
        for child in level:
            next_level.extend(_children(child))
        level = next_level
    return depth


def _children(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return cast("Mapping[str, object]", value).values()
    if isinstance(value, list | tuple):
        return cast("Iterable[object]", value)
    return ()
