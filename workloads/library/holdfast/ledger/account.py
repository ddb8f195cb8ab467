"""Defines the ledger of a run: where its time went. Training and batch fill it by their rules."""

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
"""Time, steps or items done, number of the process run. The chart has a line for each run."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One eviction and the way back from it."""

    t_us: int
    signal: str
    target: str
    back_us: int | None
    """Start of the first step, or of the first item, after it. None if no work followed."""
    lost_steps: int = 0
    """Steps known to be repeated; for batch, items given up in mid-work."""
    lane: int = 0
    """Lane of the process that was evicted."""

    @property
    def seconds(self) -> float | None:
        return None if self.back_us is None else (self.back_us - self.t_us) / 1e6


class Restart(NamedTuple):
    """A start that restored a state."""

    t_us: int
    seconds: float
    """Time from the last line of the previous run until the state was loaded."""
    from_memory: bool
    """Restored from the memory of a sharded gang's nodes, which restarted in place; else from the
    store.
    """


class GangSize(NamedTuple):
    """The number of nodes on which an elastic gang worked for a time."""

    begin_us: int
    end_us: int
    nodes: int
    places: int


@dataclass(frozen=True, kw_only=True)
class JobLedger:
    """The ledger of one run. Times in microseconds.

    `wall_us` counts every lane, so it is worker time for batch, node time for an elastic gang.
    """

    job: str
    index: int | None
    kind: str
    begin_us: int
    end_us: int
    lanes: int
    totals_us: Mapping[State, int]
    """Time of all lanes by state."""
    draw_spans: Callable[[], Iterable[Span]]
    """Yields the spans of all lanes, lane by lane. Computed on demand, as only charts need it."""
    recoveries: tuple[Recovery, ...]
    lost: int
    """Steps, or items, that were repeated."""
    draw_points: Callable[[], Iterable[Point]]
    """Yields the points of the progress chart, also on demand."""
    commits_us: tuple[int, ...] = ()
    moves: int = 0
    """Number of moves to another capacity."""
    restarts: tuple[Restart, ...] = ()
    sizes: tuple[GangSize, ...] = ()
    """Sizes of an elastic gang, in time order; empty for other jobs."""

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        return tuple(self.draw_spans())

    @cached_property
    def progress(self) -> tuple[Point, ...]:
        return tuple(self.draw_points())

    @property
    def run(self) -> str:
        """The job's name, with the index where each index trains apart."""
        return run_name(self.job, self.index)

    @property
    def wall_us(self) -> int:
        return (self.end_us - self.begin_us) * self.lanes

    @property
    def seconds(self) -> float:
        """Wall-clock time from the first event to the last."""
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
        """The useful share of the time on machines, which is the share that is paid for."""
        unpaid_us = sum(self.totals_us[state] for state in UNPAID)
        paid_us = self.wall_us - unpaid_us
        return self.useful_us / paid_us if paid_us else 0.0

    @property
    def unused_us(self) -> int:
        """The rest of the wall time, by which jobs are ranked."""
        return self.wall_us - self.useful_us


def make_head(events: Sequence[Event]) -> dict[str, Any]:
    """Returns the fields that ledgers of training and batch have in common.

    `events` are in time order, at least one.
    """
    first = events[0]
    return {
        "job": first.job,
        "index": first.run_index,
        "kind": first.kind,
        "begin_us": first.t_us,
        "end_us": events[-1].t_us,
    }


def sum_by_state(spans: Iterable[Span]) -> Mapping[State, int]:
    sums = dict.fromkeys(STATES, 0)
    for span in spans:
        sums[span.state] += span.length_us
    return sums
