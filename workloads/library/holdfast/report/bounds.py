"""Limits of a page, and the choice of the rows that a long history keeps.

Every cut is visible: `sentence` names the rows that were kept, and a cut table ends with a row of
sums over the rest.
"""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

# Without these limits the page of a month has millions of marks, and no browser opens it.
MOST_JOBS = 6
MOST_LANES = 24
MOST_ROWS = 60
MOST_EVICTIONS = 100
MOST_STEPS = 12
# Limit of a table that is always open.
MOST_OPEN_ROWS = 20
# Limits of one plot, which is 740 pixels wide.
MOST_BARS = 1200
MOST_POINTS = 2400
MOST_MARKS = 240
# Limit of one job: more lines would be thinner than their strokes.
MOST_LIVES = 40

T = TypeVar("T")


class Cut(NamedTuple, Generic[T]):
    """Rows that a page keeps, and the rest."""

    rows: list[T]
    rest: list[T]

    def sentence(self, noun: str, criterion: str) -> str:
        """Describes the rows that were kept; empty if nothing was cut."""
        if not self.rest:
            return ""
        total = len(self.rows) + len(self.rest)
        return f"{len(self.rows):,} of {total:,} {noun}, {criterion}; --json prints all."


def cut(rows: Sequence[T], limit: int, weight: Callable[[T], float]) -> Cut[T]:
    """Keeps the heaviest rows, in their original order."""
    # Indices instead of rows are sorted, because two rows may be equal.
    indices = list(range(len(rows)))
    indices.sort(key=lambda index: -weight(rows[index]))
    heavy = set(indices[:limit])
    result = Cut[T]([], [])
    for index, row in enumerate(rows):
        if index in heavy:
            result.rows.append(row)
        else:
            result.rest.append(row)
    return result


def thin(rows: Sequence[T], limit: int) -> list[T]:
    """Returns at most `limit` rows at even distances, the first one included."""
    if len(rows) <= limit:
        return list(rows)
    return [rows[number * len(rows) // limit] for number in range(limit)]


def format_count(shown: int, total: int, noun: str) -> str:
    """Returns `SHOWN of TOTAL NOUN`, or only the noun if all are shown."""
    if shown >= total:
        return noun
    return f"{shown:,} of {total:,} {noun}"
