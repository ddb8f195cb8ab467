"""The ledger of a run: where its time went. The rules of training and of batch fill it."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from holdfast.ledger.events import Event
from holdfast.ledger.timeline import STATES, Span, State
from holdfast.vocabulary.job_identity import run_name

USEFUL = frozenset({State.PRODUCTIVE})
# A machine that does not exist yet costs nothing.
UNPAID = frozenset({State.WAITING, State.DEGRADED})
Point = tuple[int, float, int]
"""(time, steps or items done, number of the process run): one line of the chart for each run."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One eviction and the way back from it."""

    t_us: int
    signal: str
    target: str
    back_us: int | None
    """When work went on: its first step, or its first item. None if it never did within the events.
    """
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


@dataclass(frozen=True, kw_only=True)
class JobLedger:
    """One run. Times in microseconds; `wall_us` counts every lane, so it is worker time for batch,
    node time for an elastic gang.
    """

    job: str
    index: int | None
    kind: str
    begin_us: int
    end_us: int
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

    @property
    def run(self) -> str:
        """The job's name, with the index where each index trains apart."""
        return run_name(self.job, self.index)

    @property
    def wall_us(self) -> int:
        return (self.end_us - self.begin_us) * self.lanes

    @property
    def seconds(self) -> float:
        """From the first event to the last, as a clock on the wall shows it."""
        return (self.end_us - self.begin_us) / 1e6

    @property
    def goodput(self) -> float:
        """The share of wall time that moved the job forward and was kept; 0 for an empty ledger."""
        return self.useful_us / self.wall_us if self.wall_us else 0.0

    @property
    def useful_us(self) -> int:
        return sum(self.totals_us[state] for state in USEFUL)

    @property
    def useful_paid(self) -> float:
        """The useful share of the time on machines: what a price is held against."""
        paid_us = self.wall_us - sum(self.totals_us[state] for state in UNPAID)
        return self.useful_us / paid_us if paid_us else 0.0

    @property
    def unused_us(self) -> int:
        """The rest of the wall time: by this jobs are ranked."""
        return self.wall_us - self.useful_us


def head(events: Sequence[Event]) -> dict[str, Any]:
    """What the ledger of a run has in common for training and batch. `events`: in time order, at
    least one.
    """
    first = events[0]
    return {
        "job": first.job,
        "index": first.run_index,
        "kind": first.kind,
        "begin_us": first.t_us,
        "end_us": events[-1].t_us,
    }


def totals_us(spans: Iterable[Span]) -> Mapping[State, int]:
    sums: Counter[State] = Counter()
    for begin, end, state, _ in spans:
        sums[state] += end - begin
    return {state: sums[state] for state in STATES}
