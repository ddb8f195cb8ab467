"""How much of a long history a page carries, and which part of it. Pure.

Nothing is left out silently: `sentence` states what was kept, and the rest of a cut table is one row of sums.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from holdfast.ledger.account import Recovery
from holdfast.ledger.job_ledger import JobLedger

# A page of a month must open in a browser and be read by a person: without these limits it has millions of marks.
MOST_JOBS, MOST_LANES, MOST_CLUSTERS = 6, 24, 4
MOST_ROWS, MOST_EVICTIONS, MOST_STEPS = 60, 100, 12
# Of a table that is never folded away.
MOST_OPEN_ROWS = 20
# Of one plot. A plot is 740 pixels wide.
MOST_BARS, MOST_POINTS, MOST_MARKS = 1200, 2400, 240
# Of one job; beyond it a line for each is thinner than what it is drawn with.
MOST_LIVES = 40

T = TypeVar("T")


class Cut(NamedTuple, Generic[T]):
    rows: list[T]
    rest: list[T]

    def sentence(self, what: str, why: str) -> str:
        """Empty if nothing was cut."""
        whole = len(self.rows) + len(self.rest)
        return f"{len(self.rows):,} of {whole:,} {what}, {why}; all are in the JSON." if self.rest else ""


def cut(rows: Sequence[T], most: int, weight: Callable[[T], float]) -> Cut[T]:
    """The heaviest in the order in which they came, and the rest."""
    if len(rows) <= most:
        return Cut(list(rows), [])
    # Sorted by number, not by row: rows may be equal, and equal ones must not stand for each other.
    heavy = set(sorted(range(len(rows)), key=lambda n: -weight(rows[n]))[:most])
    return Cut([row for n, row in enumerate(rows) if n in heavy], [row for n, row in enumerate(rows) if n not in heavy])


def spread(rows: Sequence[T], most: int, at: Callable[[T], float]) -> list[T]:
    """At most so many: the first to come of each of so many equal stretches."""
    if len(rows) <= most:
        return list(rows)
    low, high = min(map(at, rows)), max(map(at, rows))
    kept: dict[int, T] = {}
    for row in rows:
        # The last moment falls on the upper edge, one beyond the last stretch. All at one moment: no division by zero.
        kept.setdefault(min(most - 1, int((at(row) - low) * most / ((high - low) or 1))), row)
    return list(kept.values())


def spread_each(rows: Iterable[T], most: int, group: Callable[[T], Hashable], at: Callable[[T], float]) -> list[T]:
    """`spread` for each group, which share `most` among them."""
    groups: dict[Hashable, list[T]] = defaultdict(list)
    for row in rows:
        groups[group(row)].append(row)
    # Each group its share, so that a frequent kind cannot push a rare one off the plot.
    return [row for found in groups.values() for row in spread(found, most // len(groups), at)]


def worst_jobs(ledgers: Sequence[JobLedger]) -> Cut[JobLedger]:
    return cut(ledgers, MOST_JOBS, lambda found: found.unused_us)


def delay(recovery: Recovery) -> float:
    """By which evictions are ranked: those that nothing came back from weigh most."""
    return float("inf") if recovery.seconds is None else recovery.seconds
