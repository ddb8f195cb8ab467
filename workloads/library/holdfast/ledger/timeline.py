"""Computes what a lane of time was spent on, by interval arithmetic in whole microseconds.

Guarantee: the spans of a lane touch, do not overlap, and cover it from begin to end, so that their
lengths add up to it exactly.
"""

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """A state in which time is spent. If intervals overlap, the later member of this list wins."""

    RESTARTING = "restarting"  # stopping, dead, starting; everything that no other state claims
    WAITING = "waiting"  # no capacity: the pod exists, its node does not
    IDLE = "idle"  # alive, but no event explains it
    PRODUCTIVE = "productive"  # work that was kept
    STRAGGLING = "straggling"  # kept work, the part beyond the usual pace
    LOST = "lost"  # work that had to be repeated
    RESTORING = "restoring"  # loading a checkpoint, or regrouping with other members
    CHECKPOINTING = "checkpointing"  # the blocking part of a save
    DEGRADED = "degraded"  # a place of an elastic gang without a node, while the others work


STATES = tuple(State)
_RANK = {state: rank for rank, state in enumerate(STATES)}
_EDGE_BITS = 5  # state (4 bits) and open or close (1 bit) of an edge
_RANK_MASK = 0b1111
assert len(STATES) <= _RANK_MASK + 1


class Span(NamedTuple):
    begin_us: int
    end_us: int
    state: State
    lane: int = 0

    @property
    def length_us(self) -> int:
        return self.end_us - self.begin_us


class LaneTimeline:
    """A lane from begin to end, covered with `base` and with intervals, the strongest on top."""

    def __init__(
        self,
        begin_us: int,
        end_us: int,
        *,
        lane: int = 0,
        base: State,
    ) -> None:
        # Each edge is one integer (time, then state, then open or close), which sorts four times as
        # fast as tuples.
        self._edges: list[int] = []
        self._lane = lane
        self.within(begin_us, end_us)
        self.add(begin_us, end_us, base)

    def within(self, low_us: int, high_us: int) -> None:
        """Cuts all intervals added later to these bounds, which lie inside the lane."""
        self._low = low_us
        self._high = high_us

    def add(self, begin_us: int, end_us: int, state: State) -> None:
        low = begin_us if begin_us > self._low else self._low
        high = end_us if end_us < self._high else self._high
        if low < high:
            rank = _RANK[state] << 1
            self._edges.append(low << _EDGE_BITS | rank | 1)
            self._edges.append(high << _EDGE_BITS | rank)

    def spans(self) -> list[Span]:
        return _sweep(sorted(self._edges), self._lane)


def _sweep(edges: list[int], lane: int) -> list[Span]:
    spans: list[Span] = []
    open_by_rank = [0] * len(STATES)
    since = 0
    strongest = -1
    for edge in edges:
        t = edge >> _EDGE_BITS
        rank = edge >> 1 & _RANK_MASK
        open_by_rank[rank] += 1 if edge & 1 else -1
        if rank < strongest:
            continue
        while rank >= 0 and not open_by_rank[rank]:
            rank -= 1
        if rank != strongest:
            if strongest >= 0 and since != t:
                _append(spans, Span(since, t, STATES[strongest], lane))
            since = t
            strongest = rank
    return spans


def _append(spans: list[Span], span: Span) -> None:
    """Appends a span, or extends the last one that it continues.

    Another state may have covered the edge between two intervals for no time at all.
    """
    if spans:
        last = spans[-1]
        if last.state is span.state and last.end_us == span.begin_us:
            spans[-1] = Span(last.begin_us, span.end_us, span.state, span.lane)
            return
    spans.append(span)
