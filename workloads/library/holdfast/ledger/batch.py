"""Accounts for a batch job: workers come and go alone, so time is counted in lanes.

A lane is one worker and its replacements. A job with at most n workers at once has n lanes from its
first event to its last; wall time is their sum (worker-seconds).
"""

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from holdfast.ledger.account import JobLedger, Point, Recovery, make_head, sum_by_state
from holdfast.ledger.events import Event
from holdfast.ledger.processes import ProcessRun, process_runs, select_evictions
from holdfast.ledger.timeline import LaneTimeline, Span, State

WORK = ("claimed", "stored", "acked", "released", "item_failed", "dead_lettered")
"""Types of event that show that a worker works."""
KEPT = frozenset({"claimed", "stored", "acked", "item_failed", "dead_lettered"})
"""Types of event up to which the work in hand was kept."""


def make_ledger(events: Sequence[Event]) -> JobLedger:
    evictions = select_evictions(events)
    workers = process_runs(events)
    victims = close_victims(workers, evictions)
    lanes = _assign_lanes(workers)
    lane_by_process: dict[str, int] = {}
    spans: list[Span] = []
    for number, lane in enumerate(lanes):
        spans += _draw_lane(lane, number, events[0].t_us, events[-1].t_us)
        for run in lane:
            lane_by_process[run.process] = number
    victim_lanes: list[int] = []
    for evict, victim in zip(evictions, victims, strict=True):
        if victim:
            victim_lanes.append(lane_by_process[victim.process])
        else:
            victim_lanes.append(_find_restarting_lane(spans, evict.t_us))
    recoveries = _find_recoveries(workers, evictions, victims, victim_lanes)
    return JobLedger(
        **make_head(events),
        lanes=len(lanes),
        totals_us=sum_by_state(spans),
        draw_spans=lambda: spans,
        recoveries=tuple(recoveries),
        lost=sum(count_in_hand(run) for run in workers),
        draw_points=lambda: _draw_progress(events),
    )


def _find_restarting_lane(spans: Iterable[Span], t_us: int) -> int:
    """Returns the lane of a process that was evicted before its first event: one that restarts at
    that time, or the first lane.
    """
    for span in spans:
        if span.state is State.RESTARTING and span.begin_us <= t_us < span.end_us:
            return span.lane
    return 0


def close_victims(
    workers: Sequence[ProcessRun], evictions: Sequence[Event]
) -> list[ProcessRun | None]:
    """Ends the processes that were evicted without an exit of their own.

    Returns for each eviction the newest process that its target names at that moment.
    """
    victims = _find_victims(workers, evictions)
    for evict, victim in zip(evictions, victims, strict=True):
        if victim and victim.exit_code is None:
            victim.ends_us = max(victim.ends_us, evict.t_us)
    return victims


def _find_victims(
    workers: Sequence[ProcessRun], evictions: Sequence[Event]
) -> list[ProcessRun | None]:
    runs_by_name: dict[str, list[ProcessRun]] = defaultdict(list)
    for run in workers:
        # A process is called <host>-<process id>-<random>.
        for name in {run.process, *run.process.rsplit("-", 2)[:2]}:
            runs_by_name[name].append(run)
    return [_find_victim(runs_by_name, evict) for evict in evictions]


def _find_victim(
    runs_by_name: Mapping[str, Sequence[ProcessRun]], evict: Event
) -> ProcessRun | None:
    """Returns the process that an eviction hit.

    A target is a process, pod-<process id>, or a pod: its host, or the host of an index followed by
    a random word.
    """
    target = str(evict.fields.get("target", ""))
    for name in (target, target.removeprefix("pod-"), target.rpartition("-")[0]):
        runs = runs_by_name.get(name, ())
        count = bisect_right(runs, evict.t_us, key=lambda run: run.begins_us)
        if count:
            return runs[count - 1]
    return None


def _assign_lanes(workers: Sequence[ProcessRun]) -> list[list[ProcessRun]]:
    """Puts the runs on as few lanes as hold them without overlap.

    The lane that has been free longest takes the next run.
    """
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


def _draw_lane(
    lane: Sequence[ProcessRun], number: int, begin_us: int, end_us: int
) -> Sequence[Span]:
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
    return timeline.spans()


def _add_run(timeline: LaneTimeline, run: ProcessRun) -> None:
    work_begin_us = _find_work_begin_us(run)
    if work_begin_us is None:
        return
    timeline.add(work_begin_us, run.ends_us, State.IDLE)
    in_hand = 0
    before_us = run.begins_us
    for event in run.events:
        if in_hand > 0:
            state = State.PRODUCTIVE if event.type in KEPT else State.LOST
            timeline.add(before_us, event.t_us, state)
        in_hand = max(0, in_hand + _count_change(event))
        before_us = event.t_us
    if in_hand > 0:
        timeline.add(before_us, run.ends_us, State.LOST)


def _find_work_begin_us(run: ProcessRun) -> int | None:
    for event in run.events:
        if event.type in WORK:
            return event.t_us
    return None


def _count_change(event: Event) -> int:
    """Returns by how many items an event changes what the worker has in hand."""
    if event.type == "claimed":
        return count_items(event)
    if event.type in ("stored", "released"):
        return -count_items(event)
    return -1 if event.type in ("item_failed", "dead_lettered") else 0


def count_items(event: Event) -> int:
    """Returns the number of items of an event, whose field is a number or a list of ids."""
    items = event.fields.get("items") or 0
    return len(items) if isinstance(items, list) else int(items)


def count_in_hand(run: ProcessRun) -> int:
    """Returns how many items a worker had in hand at its end."""
    count = 0
    for event in run.events:
        count = max(0, count + _count_change(event))
    return count


def _find_recoveries(
    workers: Sequence[ProcessRun],
    evictions: Sequence[Event],
    victims: Sequence[ProcessRun | None],
    victim_lanes: Sequence[int],
) -> Iterable[Recovery]:
    """Yields a recovery for each eviction.

    The first worker that starts after an eviction replaces its victim; each replacement counts
    once.
    """
    candidates = iter(workers)
    for evict, victim, lane in zip(evictions, victims, victim_lanes, strict=True):
        successor = next((run for run in candidates if run.begins_us > evict.t_us), None)
        yield Recovery(
            evict.t_us,
            signal=str(evict.fields.get("signal", "")),
            target=str(evict.fields.get("target", "")),
            back_us=_find_work_begin_us(successor) if successor else None,
            lost_steps=count_in_hand(victim) if victim else 0,
            lane=lane,
        )


def _draw_progress(events: Iterable[Event]) -> Iterable[Point]:
    items = 0
    for event in events:
        if event.type == "stored":
            items += count_items(event)
            yield event.t_us, float(items), 0
