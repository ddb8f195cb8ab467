"""The goodput stack: what the time of all jobs went to, bucket by bucket. Pure.

Guarantee: over all buckets each state adds up to what the ledgers hold, to the microsecond.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from holdfast.ledger.job_ledger import JobLedger
from holdfast.ledger.timeline import STATES, Span, State

MOST_BUCKETS = 60
SECOND_US = 1_000_000
# Lengths that people think in, the last one ten years: a wrong clock must not end in millions of buckets.
LENGTHS_S = (
    1,
    2,
    5,
    10,
    30,
    60,
    120,
    300,
    600,
    1800,
    3600,
    10_800,
    21_600,
    43_200,
    86_400,
    604_800,
    2_419_200,
    31_449_600,
    314_496_000,
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

    def as_json(self) -> dict[str, Any]:
        states = {state.value: us / 1e6 for state, us in self.states_us.items()}
        return {"begin": moment(self.begin_us, 1), "seconds": self.length_us / 1e6, "states_seconds": states}


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
    """The shortest length that needs no more than MOST_BUCKETS."""
    for length_s in LENGTHS_S:
        length = length_s * SECOND_US
        # The end is not of the stretch: one that ends on an edge needs no bucket beyond it.
        if (end_us - 1) // length - begin_us // length < MOST_BUCKETS:
            return length
    return LENGTHS_S[-1] * SECOND_US


def moment(t_us: int, length_s: int) -> str:
    """As precise as the bucket needs."""
    form = "%Y-%m-%dT%H:%M:%SZ" if length_s < 60 else "%Y-%m-%dT%H:%MZ"
    return f"{datetime.fromtimestamp(t_us // SECOND_US, UTC):{form}}"
