"""Hostile variants of the product's own output: odd values anywhere, bytes cut, doubled, replaced.

Everything is drawn from the generator that is passed in, so that a seed repeats its input.
"""

import json
import random
from collections.abc import Callable
from typing import Any

HUGE = 10**400
# Places below this depth are not changed.
DEEPEST = 300
SMALL_BYTES = 4_096
"""Length of a value of which many copies may be made."""
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


def mutate(value: Any, draw: random.Random) -> Any:
    """Return a copy with one to four places changed."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        value = _change_place(value, draw)
    return value


def _change_place(value: Any, draw: random.Random, depth: int = 0) -> Any:
    """Return a copy with one place changed, which is chosen by a random descent."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    if not keys or depth == DEEPEST or draw.random() < 0.1:
        return _draw_odd(value, draw)
    copy = dict(value) if isinstance(value, dict) else list(value)
    key = draw.choice(keys)
    kind = draw.random()
    if kind < 0.05:
        del copy[key]
    elif kind < 0.1 and isinstance(copy, list):
        count = draw.choice((1, 3, 300))
        # Copies of copies of copies would fill the memory.
        is_small = len(dump(copy[key])) <= SMALL_BYTES
        copy += [copy[key]] * (count if is_small else 1)
    else:
        copy[key] = _change_place(copy[key], draw, depth + 1)
    return copy


def _draw_odd(value: Any, draw: random.Random) -> Any:
    if type(value) is int and draw.random() < 0.5:
        return value + draw.choice((-1, 1, 7, 2**20, -(2**40)))
    if draw.random() < 0.1:
        return nest(value, draw.choice((3, 70, 400)))
    return draw.choice(ODD)


def nest(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def dump(value: Any) -> bytes:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    except (RecursionError, TypeError, ValueError):
        return b"null"


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Return a copy with one to three changes of the bytes themselves."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        start = draw.randrange(len(data) + 1)
        kind = draw.randrange(5)
        end = min(len(data), start + draw.choice((1, 4, 64, 4_096)))
        if kind == 0:
            data = data[:start]
        elif kind == 1:
            data = data[:start] + draw.choice(TOKENS) + data[start:]
        elif kind == 2:
            data = data[:start] + draw.choice(TOKENS) + data[end:]
        elif kind == 3:
            repeated = data[start:end] * draw.choice((1, 20))
            data = data[:end] + repeated + data[end:]
        else:
            noise = draw.randbytes(end - start)
            data = data[:start] + noise + data[end:]
    return data[: 1 << 20]


def hostile_inputs(*seeds: Any) -> Callable[[random.Random], bytes]:
    """Return a function that draws hostile variants of `seeds`."""
    return lambda draw: draw_hostile(seeds, draw)


def draw_hostile(seeds: tuple[Any, ...], draw: random.Random) -> bytes:
    """Return a hostile variant of one of `seeds`, which are values of JSON or bytes."""
    seed = draw.choice(seeds)
    if isinstance(seed, bytes):
        return mutate_bytes(seed, draw)
    data = dump(mutate(seed, draw))
    if draw.random() < 0.3:
        return mutate_bytes(data, draw)
    return data
