"""Interval arithmetic: what a lane of time was spent on, in whole microseconds.

Called by the rules of training (gang.py) and batch (lanes.py). Guarantee: the spans of a lane touch,
do not overlap, and cover it from begin to end, so that their lengths add up to it exactly.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """What time is spent on. Where intervals overlap, the later member of this list wins."""

    RESTARTING = "restarting"  # stopping, being dead, starting again; what nothing else claims
    WAITING = "waiting"  # no capacity: the pod exists, its node does not
    IDLE = "idle"  # alive, but no event explains it
    PRODUCTIVE = "productive"  # work that was kept
    STRAGGLING = "straggling"  # kept work, the part beyond the usual pace
    LOST = "lost"  # work that had to be done again
    RESTORING = "restoring"  # loading a checkpoint
    CHECKPOINTING = "checkpointing"  # the blocking part of a save


STATES = tuple(State)
_RANK = {state: rank for rank, state in enumerate(STATES)}
_EDGE_BITS = 4  # state (3 bits) and open or close (1 bit) of an edge
_RANK_MASK = 0b111
assert len(STATES) <= _RANK_MASK + 1


class Interval(NamedTuple):
    begin_us: int
    end_us: int
    state: State


class Span(NamedTuple):
    begin_us: int
    end_us: int
    state: State
    lane: int = 0

    @property
    def length_us(self) -> int:
        return self.end_us - self.begin_us


def paint(begin_us: int, end_us: int, intervals: Iterable[Interval], *, lane: int = 0, base: State) -> list[Span]:
    """Cover [begin, end] with `base`, the intervals over it, the strongest state on top."""
    # One integer per edge sorts four times as fast as tuples: time, then state, then open or close.
    edges: list[int] = []
    for interval in (*intervals, Interval(begin_us, end_us, base)):
        low, high = max(interval.begin_us, begin_us), min(interval.end_us, end_us)
        if low < high:
            rank = _RANK[interval.state] << 1
            edges.append(low << _EDGE_BITS | rank | 1)
            edges.append(high << _EDGE_BITS | rank)
    edges.sort()
    return _sweep(edges, lane)


def _sweep(edges: list[int], lane: int) -> list[Span]:
    spans: list[Span] = []
    open_by_rank = [0] * len(STATES)
    since, strongest = 0, -1
    for edge in edges:
        t, rank = edge >> _EDGE_BITS, edge >> 1 & _RANK_MASK
        open_by_rank[rank] += 1 if edge & 1 else -1
        if rank < strongest:
            continue
        now = rank if open_by_rank[rank] else next((r for r in range(rank, -1, -1) if open_by_rank[r]), -1)
        if now == strongest:
            continue
        _append(spans, since, t, strongest, lane)
        since, strongest = t, now
    return spans


def _append(spans: list[Span], begin: int, end: int, rank: int, lane: int) -> None:
    if rank < 0 or begin == end:
        return
    state = STATES[rank]
    if spans and spans[-1].state is state and spans[-1].end_us == begin:
        spans[-1] = Span(spans[-1].begin_us, end, state, lane)
    else:
        spans.append(Span(begin, end, state, lane))
