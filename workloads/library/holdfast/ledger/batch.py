"""The account of a batch job: workers come and go alone, so time is counted in lanes.

A lane is one worker and its replacements. A job with n workers at most at
once has n lanes from its first event to its last; wall time is their sum (worker-seconds).
"""

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from holdfast.ledger.account import JobLedger, Point, Recovery, head, totals_us
from holdfast.ledger.events import Event
from holdfast.ledger.processes import ProcessRun, evictions, process_runs
from holdfast.ledger.timeline import LaneTimeline, Span, State

STARTED = ("claimed", "stored", "acked", "released", "item_failed", "dead_lettered")
KEPT = frozenset({"claimed", "stored", "acked", "item_failed", "dead_lettered"})


def ledger(events: Sequence[Event]) -> JobLedger:
    begin_us = events[0].t_us
    end_us = events[-1].t_us
    evicts = evictions(events)
    workers = process_runs(events)
    victims = _victims(workers, evicts)
    for evict, victim in zip(evicts, victims, strict=True):
        if victim and victim.exit_code is None:
            victim.ends_us = max(victim.ends_us, evict.t_us)
    spans: list[Span] = []
    lanes = _lanes(workers)
    for number, lane in enumerate(lanes):
        timeline = LaneTimeline(
            begin_us,
            end_us,
            lane=number,
            base=State.RESTARTING,
        )
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
            _recoveries(
                workers,
                evicts,
                victims,
                {r.process: n for n, lane in enumerate(lanes) for r in lane},
            )
        ),
        lost=sum(_in_hand(run) for run in workers),
        points=lambda: _progress(events),
    )


def _victims(workers: Sequence[ProcessRun], evicts: Sequence[Event]) -> list[ProcessRun | None]:
    """Who each eviction hit: of the processes that its target names, the newest at that moment."""
    named: dict[str, list[ProcessRun]] = defaultdict(list)
    for run in workers:
        # A process is called <host>-<process id>-<random>.
        for name in {run.process, *run.process.rsplit("-", 2)[:2]}:
            named[name].append(run)
    return [_victim(named, evict) for evict in evicts]


def _victim(named: Mapping[str, Sequence[ProcessRun]], evict: Event) -> ProcessRun | None:
    """A target is a process, pod-<process id>, or a pod: its host, or that of an index with a
    random word behind it.
    """
    target = str(evict.fields.get("target", ""))
    for name in (target, target.removeprefix("pod-"), target.rpartition("-")[0]):
        runs = named.get(name, ())
        begun = bisect_right(runs, evict.t_us, key=lambda run: run.begins_us)
        if begun:
            return runs[begun - 1]
    return None


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
    in_hand = 0
    before_us = run.begins_us
    for event in run.events:
        if in_hand > 0:
            timeline.add(
                before_us, event.t_us, State.PRODUCTIVE if event.type in KEPT else State.LOST
            )
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
    """A worker is replaced by the first one that starts after its eviction; each replacement counts
    once.
    """
    coming = iter(workers)
    for evict, victim in zip(evicts, victims, strict=True):
        successor = next((worker for worker in coming if worker.begins_us > evict.t_us), None)
        if successor:
            back = next((e.t_us for e in successor.events if e.type in STARTED), None)
        else:
            back = None
        signal = str(evict.fields.get("signal", ""))
        target = str(evict.fields.get("target", ""))
        lost, lane = (_in_hand(victim), lane_of[victim.process]) if victim else (0, 0)
        yield Recovery(evict.t_us, signal, target, back, lost, lane)


def _progress(events: Iterable[Event]) -> Iterable[Point]:
    done = 0
    for event in events:
        if event.type == "stored":
            done += items(event)
            yield event.t_us, float(done), 0
