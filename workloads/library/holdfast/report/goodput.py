"""What the time of jobs went to, added up and bucket by bucket. Pure.

Guarantee: over all buckets each state adds up to what the ledgers hold, to the microsecond.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.ledger.job_ledger import JobLedger
from holdfast.ledger.timeline import STATES, Span, State
from holdfast.report.text import moment

MOST_BUCKETS = 60
SECOND_US = 1_000_000
MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
# Lengths that people think in, the last one ten years: a wrong clock must not end in millions of buckets.
LENGTHS_S = (
    *(1, 2, 5, 10, 30),
    *(MINUTE_S * n for n in (1, 2, 5, 10, 30)),
    *(HOUR_S * n for n in (1, 3, 6, 12)),
    *(DAY_S * n for n in (1, 7, 28, 364, 3_640)),
)


@dataclass(frozen=True, slots=True)
class Totals:
    """Of one job or of several."""

    name: str
    jobs: int
    wall_us: int
    states_us: dict[State, int]
    evictions: int
    lost: int
    """Steps or items done again: of one kind of job."""

    @property
    def goodput(self) -> float:
        # A job of one line has no length.
        return self.states_us[State.PRODUCTIVE] / self.wall_us if self.wall_us else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "jobs": self.jobs,
            "wall_seconds": self.wall_us / 1e6,
            "states_seconds": {state.value: us / 1e6 for state, us in self.states_us.items()},
            "evictions": self.evictions,
            "lost": self.lost,
        }


def totals_of(name: str, ledgers: Iterable[JobLedger]) -> Totals:
    found, states = list(ledgers), Counter[State]()
    for one in found:
        states.update(one.totals_us)
    return Totals(
        name=name,
        jobs=len(found),
        wall_us=sum(one.wall_us for one in found),
        states_us={state: states[state] for state in STATES},
        evictions=sum(len(one.recoveries) for one in found),
        lost=sum(one.lost for one in found),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    begin_us: int
    length_us: int
    states_us: dict[State, int]

    @property
    def wall_us(self) -> int:
        return sum(self.states_us.values())

    @property
    def goodput(self) -> float:
        return self.states_us.get(State.PRODUCTIVE, 0) / self.wall_us

    @property
    def begin(self) -> str:
        return moment(self.begin_us // SECOND_US, self.length_us // SECOND_US)

    def as_json(self) -> dict[str, Any]:
        states = {state.value: us / 1e6 for state, us in self.states_us.items()}
        return {
            "begin": moment(self.begin_us // SECOND_US, 1),
            "seconds": self.length_us / 1e6,
            "states_seconds": states,
        }


def buckets(ledgers: Sequence[JobLedger]) -> tuple[Bucket, ...]:
    """Of whole clock hours, days or seconds, so that two reports share their edges; empty ones are left out."""
    spans = [span for found in ledgers for span in found.spans]
    if not spans:
        return ()
    length = length_us(min(x.begin_us for x in ledgers), max(x.end_us for x in ledgers))
    sums: dict[int, Counter[State]] = defaultdict(Counter)
    for number, state, us in split(spans, length):
        sums[number][state] += us
    return tuple(
        Bucket(begin_us=number * length, length_us=length, states_us={s: states[s] for s in STATES if states[s]})
        for number, states in sorted(sums.items())
    )


def split(spans: Iterable[Span], length: int, origin_us: int = 0) -> Iterable[tuple[int, State, int]]:
    """(number of the stretch, state, time of it): spans cut at the edges of stretches of one length."""
    for begin, end, state, _ in spans:
        while begin < end:
            # Integers throughout: floats lose microseconds, and the states would no longer add up.
            number = (begin - origin_us) // length
            until = min(end, origin_us + (number + 1) * length)
            yield number, state, until - begin
            begin = until


def length_us(begin_us: int, end_us: int) -> int:
    """The shortest length that needs few enough buckets."""
    lengths = [s * SECOND_US for s in LENGTHS_S]
    # The end is not of the stretch: one that ends on an edge needs no bucket beyond it.
    return next((us for us in lengths if (end_us - 1) // us - begin_us // us < MOST_BUCKETS), lengths[-1])
