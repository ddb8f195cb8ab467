"""Reads the points of a parameter sweep: lists of values, of which every combination is a point, or
a table with a row for each point.
"""

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.jobs.file.formats import TEXT, VARIABLE
from holdfast.support.errors import InputError

MAX_POINTS = 1000
# The table of the points is one ConfigMap.
MAX_TABLE_BYTES = 1 << 20
EXAMPLE = "sweep: {LR: [0.001, 0.0003], SEED: [1, 2, 3]}"
SCHEMA: dict[str, Any] = {
    "type": ["object", "array"],
    "additionalProperties": {
        "type": "array",
        "minItems": 1,
        "items": {"type": ["string", "number", "boolean"]},
    },
    "items": {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    },
    "maxItems": MAX_POINTS,
}

Point = dict[str, str]
"""Parameter -> value, as the process gets it."""


def parse(value: object) -> list[Point]:
    """Return the points of a sweep in their order.

    Raises InputError for an empty or too large sweep, for rows that differ in their parameters, and
    for a point that comes twice.
    """
    if isinstance(value, Mapping):
        points = _combine(value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        points = _read_table(value)
    else:
        raise _make_error(repr(value)[:120])
    _require_different(points)
    if len(encode(points)) > MAX_TABLE_BYTES:
        raise _make_error(f"a table of {len(encode(points)):,} bytes")
    return points


def encode(points: Sequence[Point]) -> bytes:
    """Return the table that the pods read."""
    return json.dumps(points, separators=(",", ":")).encode()


def _make_error(got: str, fix: str = f"as {EXAMPLE}") -> InputError:
    allowed = (
        f"lists of values by parameter or a table of rows, 1 to {MAX_POINTS:,} points and"
        f" {MAX_TABLE_BYTES >> 20} MiB in all"
    )
    return InputError("sweep", got=got, allowed=allowed, fix=fix)


def _combine(lists: Mapping[str, Any]) -> list[Point]:
    values: list[list[str]] = []
    for name, entries in lists.items():
        VARIABLE.match("sweep: parameter", name)
        if isinstance(entries, str) or not isinstance(entries, Sequence) or not entries:
            fix = f"write a list with a value, {name}: [1, 2]; one value for all belongs to `env`"
            raise _make_error(f"{name}: {entries!r}"[:120], fix)
        values.append([_read_value(name, entry) for entry in entries])
    # Counted before they are made: three short lists can be a thousand million points.
    lengths = [len(entries) for entries in values]
    _require_count(math.prod(lengths) if lengths else 0)
    return [
        dict(zip(lists, combination, strict=True)) for combination in itertools.product(*values)
    ]


def _read_table(rows: Sequence[Any]) -> list[Point]:
    _require_count(len(rows))
    points: list[Point] = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping) or not row:
            raise _make_error(f"row {number}: {row!r}"[:120], "write a row as {LR: 0.001, SEED: 1}")
        if points and row.keys() != points[0].keys():
            first = ", ".join(points[0])
            raise _make_error(
                f"row {number} with {', '.join(map(str, row))}"[:200],
                f"give each row the parameters of the first one: {first}",
            )
        point: Point = {}
        for name, value in row.items():
            VARIABLE.match("sweep: parameter", name)
            point[name] = _read_value(name, value)
        points.append(point)
    return points


def _require_count(count: int) -> None:
    if count == 0:
        raise _make_error("no point")
    if count > MAX_POINTS:
        raise _make_error(
            f"{count:,} points", "give fewer values, or a table of rows; or use several job files"
        )


def _read_value(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return TEXT.match(f"sweep[{name}]", value)


def _require_different(points: Iterable[Point]) -> None:
    numbers: dict[tuple[str, ...], int] = {}
    for number, point in enumerate(points):
        key = tuple(point[name] for name in sorted(point))
        if key in numbers:
            text = ", ".join(f"{name}={value}" for name, value in point.items())
            raise _make_error(f"{text} twice"[:200], "give each value, or row, once")
        numbers[key] = number
