"""How much of a long history a page carries, and which part of it. Pure.

Nothing is left out silently: `sentence` states what was kept, and the rest of a cut table is one
row of sums.
"""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

# A page of a month must open in a browser and be read by a person: without these limits it has
# millions of marks.
MOST_JOBS = 6
MOST_LANES = 24
MOST_ROWS = 60
MOST_EVICTIONS = 100
MOST_STEPS = 12
# Of a table that is never folded away.
MOST_OPEN_ROWS = 20
# Of one plot. A plot is 740 pixels wide.
MOST_BARS = 1200
MOST_POINTS = 2400
MOST_MARKS = 240
# Of one job; beyond it a line for each is thinner than what it is drawn with.
MOST_LIVES = 40

T = TypeVar("T")


class Cut(NamedTuple, Generic[T]):
    rows: list[T]
    rest: list[T]

    def sentence(self, what: str, why: str) -> str:
        """Empty if nothing was cut."""
        whole = len(self.rows) + len(self.rest)
        if self.rest:
            return f"{len(self.rows):,} of {whole:,} {what}, {why}; --json prints all."
        return ""


def cut(rows: Sequence[T], most: int, weight: Callable[[T], float]) -> Cut[T]:
    """The heaviest in the order in which they came, and the rest."""
    # Sorted by number, not by row: rows may be equal, and equal ones are two.
    heavy = set(sorted(range(len(rows)), key=lambda n: -weight(rows[n]))[:most])
    return Cut(
        [row for n, row in enumerate(rows) if n in heavy],
        [row for n, row in enumerate(rows) if n not in heavy],
    )


def thin(rows: Sequence[T], most: int) -> list[T]:
    """At most this number of them, evenly, the first included."""
    if len(rows) <= most:
        return list(rows)
    return [rows[n * len(rows) // most] for n in range(most)]


def count_of(shown: int, whole: int, what: str) -> str:
    return f"{shown:,} of {whole:,} {what}" if shown < whole else what
