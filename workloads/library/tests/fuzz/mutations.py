"""Hostile variants of what the product itself writes: odd values in any place, bytes cut, doubled
and replaced.

Everything is drawn from the generator that is handed in, so one number gives one input again.
"""

import json
import random
from collections.abc import Callable
from typing import Any

HUGE = 10**400
DEEPEST = 300  # places that are changed; what nests more deeply is changed further out
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**53 + 1,
    2**63,
    HUGE,
    1.5,
    1e308,
    -0.0,
    float("nan"),
    float("inf"),
    "",
    "a",
    "\x00",
    "\ud800",
    "\u202e",
    "\x1b[31m",
    "[bold]",
    "[/]",
    "'; DROP TABLE x;--",
    "../../etc/passwd",
    "%s%n",
    "-5",
    "0x" + "f" * 5_000,
    "9" * 5_000,
    "1e400",
    "::error::",
    "x" * 70_000,
    [],
    {},
    [[]],
    [None],
    [{}],
    {"": None},
    {"a": []},
    {"$tensor": "x"},
    [0] * 5_000,
)
TOKENS = (
    b"NaN",
    b"Infinity",
    b"-1",
    b"1e999",
    b"[" * 3_000,
    b'{"a":' * 3_000,
    b"\x00",
    b"\xff\xfe",
    b"\r\n\r\n",
    b"---\n",
    b"&a [*a]",
    b"<<: *a",
    b"!!python/object:os.system",
    b"%YAML 9.9\n",
    b"\xef\xbb\xbf",
    b"'",
    b'"',
    b"{{",
    b"}}",
    b"$(",
    b"\t",
)


def mutated(value: Any, draw: random.Random) -> Any:
    """A copy with one to four places changed."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        value = _changed(value, draw)
    return value


def _changed(value: Any, draw: random.Random, depth: int = 0) -> Any:
    """A copy with one place changed, found by going down at random."""
    if isinstance(value, dict):
        keys = list(value)
    else:
        keys = range(len(value)) if isinstance(value, list) else ()
    if not keys or depth == DEEPEST or draw.random() < 0.1:
        return _odd(value, draw)
    copy = dict(value) if isinstance(value, dict) else list(value)
    key = draw.choice(keys)
    kind = draw.random()
    if kind < 0.05:
        del copy[key]
    elif kind < 0.1 and isinstance(copy, list):
        copy += [copy[key]] * draw.choice((1, 3, 300))
    else:
        copy[key] = _changed(copy[key], draw, depth + 1)
    return copy


def _odd(value: Any, draw: random.Random) -> Any:
    if type(value) is int and draw.random() < 0.5:
        return value + draw.choice((-1, 1, 7, 2**20, -(2**40)))
    if draw.random() < 0.1:
        return nested(value, draw.choice((3, 70, 400)))
    return draw.choice(ODD)


def nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def dumped(value: Any) -> bytes:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    except (RecursionError, TypeError, ValueError):
        return b"null"


def spoilt(data: bytes, draw: random.Random) -> bytes:
    """One to three changes of the bytes themselves."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = draw.randrange(len(data) + 1)
        kind = draw.randrange(5)
        end = min(len(data), at + draw.choice((1, 4, 64, 4_096)))
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            data = data[:at] + draw.choice(TOKENS) + data[at:]
        elif kind == 2:
            data = data[:at] + draw.choice(TOKENS) + data[end:]
        elif kind == 3:
            data = data[:end] + data[at:end] * draw.choice((1, 20)) + data[end:]
        else:
            data = data[:at] + draw.randbytes(end - at) + data[end:]
    return data[: 1 << 20]


def seeded(*seeds: Any) -> Callable[[random.Random], bytes]:
    return lambda draw: hostile(seeds, draw)


def hostile(seeds: tuple[Any, ...], draw: random.Random) -> bytes:
    """Bytes made from one of `seeds`, values of JSON or bytes."""
    seed = draw.choice(seeds)
    data = seed if isinstance(seed, bytes) else dumped(mutated(seed, draw))
    if isinstance(seed, bytes) or draw.random() < 0.3:
        return spoilt(data, draw)
    return data
