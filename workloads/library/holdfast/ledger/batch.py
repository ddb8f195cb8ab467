"""The account of a batch job: workers come and go alone, so time is counted in lanes.

A lane is one worker and its replacements. A job with n workers at most at
once has n lanes from its first event to its last; wall time is their sum (worker-seconds).
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from holdfast.ledger.account import JobLedger, Point, Recovery, head, totals_us
from holdfast.ledger.events import Event
from holdfast.ledger.processes import ProcessRun, evictions, process_runs
from holdfast.ledger.timeline import LaneTimeline, Span, State

STARTED = ("claimed", "stored", "acked", "released", "item_failed", "dead_lettered")
ON_ITS_WAY_US = 1_000_000  # a line can be written between the eviction's line and its effect
KEPT = frozenset({"claimed", "stored", "acked", "item_failed", "dead_lettered"})


def ledger(events: Sequence[Event]) -> JobLedger:
    begin_us, end_us = events[0].t_us, events[-1].t_us
    evicts, workers = evictions(events), process_runs(events)
    victims = _victims(workers, evicts)
    for evict, victim in zip(evicts, victims, strict=True):
        if victim and victim.exit_code is None:
            victim.ends_us = max(victim.ends_us, evict.t_us)
    spans: list[Span] = []
    lanes = _lanes(workers)
    for number, lane in enumerate(lanes):
        timeline = LaneTimeline(begin_us, end_us, lane=number, base=State.RESTARTING)
        for run in lane:
            _add_run(timeline, run)
        if lane[-1].exit_code == 0:
            timeline.add(lane[-1].ends_us, end_us, State.IDLE)
        spans += timeline.spans()
    return JobLedger(
        **head(events),
        lanes=len(lanes),
        totals_us=totals_us(spans),
        drawn=lambda: spans,
        recoveries=tuple(
            _recoveries(workers, evicts, victims, {r.process: n for n, lane in enumerate(lanes) for r in lane})
        ),
        lost=sum(_in_hand(run) for run in workers),
        points=lambda: _progress(events),
    )


def _victims(workers: Sequence[ProcessRun], evicts: Sequence[Event]) -> list[ProcessRun | None]:
    """Who each eviction hit: the named process, else one that stopped at that moment and is not taken yet."""
    names = _names(workers)
    silent, leaving = _Silent(workers), _Leaving(workers)
    taken: set[str] = set()
    found: list[ProcessRun | None] = []
    for evict in evicts:
        target, t_us = str(evict.fields.get("target", "")), evict.t_us
        near = [run for run in (silent.nearest(t_us, taken), leaving.nearest(t_us, taken)) if run]
        victim = (
            names.get(target)
            or names.get(target.removeprefix("pod-"))
            or min(near, key=lambda run: abs(run.ends_us - t_us), default=None)
        )
        found.append(victim)
        taken |= {victim.process} if victim else set()
    return found


def _names(workers: Sequence[ProcessRun]) -> dict[str, ProcessRun]:
    """A target is the name of a process, or pod-<process id>; a process is called <host>-<process id>-<random>."""
    names: dict[str, ProcessRun] = {}
    for run in workers:
        for part in (run.process, *(p for p in run.process.split("-")[1:-1] if p.isdecimal())):
            names.setdefault(part, run)
    return names


class _Silent:
    """Killed without a trace: no event after the eviction, but for one on its way. By their last event."""

    def __init__(self, workers: Iterable[ProcessRun]) -> None:
        self._runs = sorted((w for w in workers if w.exit_code is None), key=lambda run: run.ends_us)
        self._ends = [run.ends_us for run in self._runs]

    def nearest(self, t_us: int, taken: set[str]) -> ProcessRun | None:
        """Those taken leave the list, so each is passed by once."""
        before = at = bisect_right(self._ends, t_us)
        while before and self._runs[before - 1].process in taken:
            before -= 1
        del self._runs[before:at], self._ends[before:at]
        found = [self._runs[before - 1]] if before else []
        for run in self._runs[before : bisect_right(self._ends, t_us + ON_ITS_WAY_US)]:
            found += [run] if run.begins_us <= t_us and run.process not in taken else []
        return min(found, key=lambda run: abs(run.ends_us - t_us), default=None)


class _Leaving:
    """Left early, with notice: an exit other than 0, at or after the eviction. Asked in the order of time."""

    def __init__(self, workers: Iterable[ProcessRun]) -> None:
        self._coming = [run for run in reversed(list(workers)) if run.exit_code]
        self._alive: list[tuple[int, int, ProcessRun]] = []

    def nearest(self, t_us: int, taken: set[str]) -> ProcessRun | None:
        while self._coming and self._coming[-1].begins_us <= t_us:
            run = self._coming.pop()
            heapq.heappush(self._alive, (run.ends_us, len(self._coming), run))
        while self._alive and (self._alive[0][0] < t_us or self._alive[0][2].process in taken):
            heapq.heappop(self._alive)
        return self._alive[0][2] if self._alive else None


def _lanes(workers: Sequence[ProcessRun]) -> list[list[ProcessRun]]:
    """As few lanes as hold all runs without overlap; the one longest free takes the next."""
    lanes: list[list[ProcessRun]] = []
    free: list[tuple[int, int]] = []
    for run in workers:
        if free and free[0][0] <= run.begins_us:
            _, number = heapq.heappop(free)
        else:
            number = len(lanes)
            lanes.append([])
        lanes[number].append(run)
        heapq.heappush(free, (run.ends_us, number))
    return lanes


def _add_run(timeline: LaneTimeline, run: ProcessRun) -> None:
    begun = next((e.t_us for e in run.events if e.type in STARTED), None)
    if begun is None:
        return
    timeline.add(begun, run.ends_us, State.IDLE)
    in_hand, before_us = 0, run.begins_us
    for event in run.events:
        if in_hand > 0:
            timeline.add(before_us, event.t_us, State.PRODUCTIVE if event.type in KEPT else State.LOST)
        in_hand = max(0, in_hand + _change(event))
        before_us = event.t_us
    if in_hand > 0:
        timeline.add(before_us, run.ends_us, State.LOST)


def _change(event: Event) -> int:
    if event.type == "claimed":
        return items(event)
    if event.type in ("stored", "released"):
        return -items(event)
    return -1 if event.type in ("item_failed", "dead_lettered") else 0


def items(event: Event) -> int:
    """`items` is a number, or the list of their ids."""
    value = event.fields.get("items") or 0
    return len(value) if isinstance(value, list) else int(value)


def _in_hand(run: ProcessRun) -> int:
    left = 0
    for event in run.events:
        left = max(0, left + _change(event))
    return left


def _recoveries(
    workers: Sequence[ProcessRun],
    evicts: Sequence[Event],
    victims: Sequence[ProcessRun | None],
    lane_of: Mapping[str, int],
) -> Iterable[Recovery]:
    """A worker is replaced by the first one that starts after its eviction; each replacement counts once."""
    coming = iter(workers)
    for evict, victim in zip(evicts, victims, strict=True):
        successor = next((worker for worker in coming if worker.begins_us > evict.t_us), None)
        back = next((e.t_us for e in successor.events if e.type in STARTED), None) if successor else None
        signal, target = str(evict.fields.get("signal", "")), str(evict.fields.get("target", ""))
        lost, lane = (_in_hand(victim), lane_of[victim.process]) if victim else (0, 0)
        yield Recovery(evict.t_us, signal, target, back, lost, lane)


def _progress(events: Iterable[Event]) -> Iterable[Point]:
    done = 0
    for event in events:
        if event.type == "stored":
            done += items(event)
            yield event.t_us, float(done), 0
