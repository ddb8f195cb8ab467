"""What the rules of training and of batch hand to the ledger of a job."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from holdfast.ledger.timeline import STATES, Span, State

Point = tuple[int, float, int]
"""(time, steps or items done, number of the process run): one line of the chart for each run."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One eviction and the way back from it."""

    t_us: int
    signal: str
    target: str
    back_us: int | None
    """When work went on: its first step, or its first item. None if it never did within the events."""
    lost_steps: int = 0
    """Steps known to be done again; for batch, items given up in mid-work."""
    lane: int = 0
    """Of the process that was evicted."""

    @property
    def seconds(self) -> float | None:
        return None if self.back_us is None else (self.back_us - self.t_us) / 1e6


class Restart(NamedTuple):
    """A start that took up a state."""

    t_us: int
    seconds: float
    """Until the state was loaded, since the last line of the run before."""
    from_memory: bool
    """Of the nodes of a sharded gang, which restarted in place; else from the store."""


class GangSize(NamedTuple):
    """The number of an elastic gang's nodes that worked."""

    begin_us: int
    end_us: int
    nodes: int
    places: int


@dataclass(frozen=True)
class Account:
    lanes: int
    totals_us: Mapping[State, int]
    """Of all lanes."""
    drawn: Callable[[], Iterable[Span]]
    """The spans of all lanes, lane by lane. Only a chart asks, so only a chart pays."""
    recoveries: tuple[Recovery, ...]
    lost: int
    """Steps, or items, that were done again."""
    points: Callable[[], Iterable[Point]]
    """As `drawn`."""
    commits_us: tuple[int, ...] = ()
    moves: int = 0
    """Times that the job was sent to another capacity."""
    restarts: tuple[Restart, ...] = ()
    sizes: tuple[GangSize, ...] = ()
    """Of an elastic gang, in the order of time."""

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        return tuple(self.drawn())

    @cached_property
    def progress(self) -> tuple[Point, ...]:
        return tuple(self.points())


def totals_us(spans: Iterable[Span]) -> Mapping[State, int]:
    sums: Counter[State] = Counter()
    for begin, end, state, _ in spans:
        sums[state] += end - begin
    return {state: sums[state] for state in STATES}
