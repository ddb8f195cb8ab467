"""Accounts for a training job: all ranks stop and start together, so one lane shows its time.

An elastic gang has a lane for each of its places: one without a node is degraded while the others
work. The lane follows rank 0 of every attempt. Steps are lost when a later attempt restored a step
before them; until then they count as kept.
"""

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.ledger.account import JobLedger, Point, Recovery, Restart, make_head
from holdfast.ledger.elastic_gang import draw_lanes, find_gang_sizes, sum_node_time_us
from holdfast.ledger.events import Event
from holdfast.ledger.processes import (
    ProcessRun,
    find_interval_us,
    pair_with_next,
    process_runs,
    select_evictions,
)
from holdfast.ledger.timeline import LaneTimeline, State

# A window slower than the job's usual step by this factor is straggling beyond the usual time.
SLOW_FACTOR = 1.5
NOTHING_LOST = 1 << 62


class StepWindow(NamedTuple):
    """The steps done between two moments, as one window line reports them."""

    begin_us: int
    end_us: int
    steps: int
    last_step: int

    def count_lost(self, last_kept_step: int) -> int:
        """Returns the number of its steps after the last step that was kept."""
        return min(self.steps, max(0, self.last_step - last_kept_step))


def make_ledger(events: Sequence[Event]) -> JobLedger:
    evictions = select_evictions(events)
    leads = select_leads(process_runs(events))
    close_killed_runs(leads, evictions)
    windows = [read_windows(run) for run in leads]
    kept_steps = _find_kept_steps(leads)
    sizes = find_gang_sizes(leads)
    places = max((size.places for size in sizes), default=1)
    lane = _draw_lane(events, leads, windows, kept_steps).spans()
    lost_steps = 0
    for run_windows, last_kept_step in zip(windows, kept_steps, strict=True):
        lost_steps += _count_lost_steps(run_windows, last_kept_step)
    return JobLedger(
        **make_head(events),
        lanes=places,
        totals_us=sum_node_time_us(lane, sizes, places),
        draw_spans=lambda: draw_lanes(lane, sizes, places),
        sizes=tuple(sizes),
        recoveries=tuple(_find_recoveries(leads, windows, evictions)),
        lost=lost_steps,
        draw_points=lambda: _draw_progress(leads),
        commits_us=tuple(event.t_us for event in events if event.type == "commit"),
        moves=sum(event.type == "moved" for event in events),
        restarts=tuple(_find_restarts(leads)),
    )


def _draw_lane(
    events: Sequence[Event],
    leads: Sequence[ProcessRun],
    windows: Sequence[Sequence[StepWindow]],
    kept_steps: Sequence[int],
) -> LaneTimeline:
    end_us = events[-1].t_us
    timeline = LaneTimeline(events[0].t_us, end_us, base=State.RESTARTING)
    for event in events:
        if event.type == "scheduled":
            timeline.add(*find_interval_us(event), State.WAITING)
    usual_us = round(_find_usual_step_s(windows) * 1e6)
    runs = zip(pair_with_next(leads), windows, kept_steps, strict=True)
    for (run, next_run), run_windows, last_kept_step in runs:
        timeline.within(run.begins_us, next_run.begins_us if next_run else end_us)
        _add_run(timeline, run, next_run)
        _add_work(timeline, run_windows, last_kept_step, usual_us)
    return timeline


def _find_restarts(leads: Sequence[ProcessRun]) -> Iterable[Restart]:
    before: ProcessRun | None = None
    for run in leads:
        since_us = before.ends_us if before else run.begins_us
        for event in run.select("restore"):
            if event.fields.get("step"):
                seconds = max(0.0, (event.t_us - since_us) / 1e6)
                from_memory = event.fields.get("source") == "memory"
                yield Restart(event.t_us, seconds, from_memory)
        before = run


def select_leads(runs: Iterable[ProcessRun]) -> list[ProcessRun]:
    """Returns the runs of rank 0.

    A launcher writes only how it ended, which is how the ranks before it ended.
    """
    leads: list[ProcessRun] = []
    for run in runs:
        if run.rank != 0:
            continue
        is_launcher = run.events_by_type.keys() == {"exit"}
        if not (is_launcher and leads):
            leads.append(run)
        elif leads[-1].exit_code is None:
            leads[-1].end_with(run.select("exit")[0])
    return leads


def read_windows(run: ProcessRun) -> list[StepWindow]:
    windows: list[StepWindow] = []
    for event in run.select("window"):
        begin_us, end_us = find_interval_us(event)
        first_step = int(event.fields.get("first_step") or 0)
        last_step = int(event.fields.get("last_step") or 0)
        steps = last_step - first_step + 1
        if steps > 0:
            windows.append(StepWindow(begin_us, end_us, steps, last_step))
    return windows


def close_killed_runs(leads: Sequence[ProcessRun], evictions: Sequence[Event]) -> None:
    """Dates the end of killed processes, which leave no line about it.

    The first eviction after the last line and before the next run is their end.
    """
    times_us = [event.t_us for event in evictions]
    for run, next_run in pair_with_next(leads):
        if run.exit_code is not None:
            continue
        limit_us = next_run.begins_us if next_run else NOTHING_LOST
        first = bisect_left(times_us, run.ends_us)
        if first < len(times_us) and times_us[first] < limit_us:
            run.ends_us = times_us[first]


def _find_kept_steps(leads: Sequence[ProcessRun]) -> list[int]:
    """Returns for each run the last step that it keeps: no later run restored an earlier one."""
    floor = NOTHING_LOST
    steps: list[int] = []
    for run in reversed(leads):
        steps.append(floor)
        floor = min(floor, _find_restored_step(run))
    return steps[::-1]


def _find_restored_step(run: ProcessRun) -> int:
    """Returns the step at which a run began.

    A process that died before it restored undid nothing.
    """
    first_step = run.first_value("window", "first_step", NOTHING_LOST + 1)
    return int(run.first_value("restore", "step", first_step - 1))


def _find_usual_step_s(windows: Iterable[Iterable[StepWindow]]) -> float:
    paces_us: list[float] = []
    for run_windows in windows:
        for window in run_windows:
            paces_us.append((window.end_us - window.begin_us) / window.steps)
    if not paces_us:
        return 0.0
    return statistics.median(paces_us) / 1e6


def _add_run(timeline: LaneTimeline, run: ProcessRun, next_run: ProcessRun | None) -> None:
    stops = run.select("stop")
    stop_us = stops[0].t_us if stops else run.ends_us
    timeline.add(_find_ready_us(run), stop_us, State.IDLE)
    for event in run.select("restore"):
        timeline.add(*find_interval_us(event), State.RESTORING)
    for event in run.select("resized"):
        timeline.add(*find_interval_us(event), State.RESTORING)
    for event in run.select("save"):
        timeline.add(*find_interval_us(event, "blocking_seconds"), State.CHECKPOINTING)
    if next_run is not None and run.exit_code is None:
        # Work since the last line left no trace but the time it took.
        last_line_us = run.newest_us("window", "restore", "save")
        timeline.add(last_line_us, run.ends_us, State.LOST)


def _find_ready_us(run: ProcessRun) -> int:
    """Returns when the process could work: its state was loaded, or its first window began."""
    restores = run.select("restore")
    windows = run.select("window")
    if not windows:
        return restores[0].t_us if restores else run.ends_us
    if restores and restores[0].t_us <= windows[0].t_us:
        return restores[0].t_us
    begin_us, _ = find_interval_us(windows[0])
    return begin_us


def _add_work(
    timeline: LaneTimeline,
    windows: Iterable[StepWindow],
    last_kept_step: int,
    usual_us: int,
) -> None:
    for window in windows:
        begin_us, kept_until_us, steps, last_step = window
        if last_step > last_kept_step:
            lost_steps = window.count_lost(last_kept_step)
            kept_until_us -= (kept_until_us - begin_us) * lost_steps // steps
            timeline.add(kept_until_us, window.end_us, State.LOST)
            steps -= lost_steps
        timeline.add(begin_us, kept_until_us, State.PRODUCTIVE)
        if kept_until_us - begin_us > usual_us * steps * SLOW_FACTOR:
            timeline.add(begin_us + usual_us * steps, kept_until_us, State.STRAGGLING)


def _count_lost_steps(windows: Iterable[StepWindow], last_kept_step: int) -> int:
    lost_steps = 0
    for window in windows:
        # Most windows are kept whole, and a ledger of a month has millions of them.
        if window.last_step > last_kept_step:
            lost_steps += window.count_lost(last_kept_step)
    return lost_steps


def _find_recoveries(
    leads: Sequence[ProcessRun],
    windows: Sequence[Sequence[StepWindow]],
    evictions: Sequence[Event],
) -> Iterable[Recovery]:
    """Yields a recovery for each eviction that stopped the gang.

    The pods of a gang are evicted together, and it stops once.
    """
    begins_us = [run.begins_us for run in leads]
    next_workers = _find_next_workers(leads)
    lost_steps: dict[tuple[int, int], int] = {}
    last_victim: int | None = None
    for evict in evictions:
        successor = bisect_right(begins_us, evict.t_us)
        victim = successor - 1
        if victim == last_victim:
            continue
        last_victim = victim
        signal = str(evict.fields.get("signal", ""))
        target = str(evict.fields.get("target", ""))
        worker = next_workers[successor]
        if worker is None:
            yield Recovery(evict.t_us, signal, target, None)
            continue
        pair = (victim, worker)
        if victim >= 0 and pair not in lost_steps:
            restored_step = _find_restored_step(leads[worker])
            lost_steps[pair] = _count_lost_steps(windows[victim], restored_step)
        back_us, _ = find_interval_us(leads[worker].select("window")[0])
        yield Recovery(evict.t_us, signal, target, back_us, lost_steps.get(pair, 0))


def _find_next_workers(leads: Sequence[ProcessRun]) -> list[int | None]:
    """Returns for each position the first run from there on that worked."""
    workers: list[int | None] = [None]
    for number in range(len(leads) - 1, -1, -1):
        workers.append(number if leads[number].select("window") else workers[-1])
    return workers[::-1]


def _draw_progress(leads: Sequence[ProcessRun]) -> Iterable[Point]:
    for number, run in enumerate(leads):
        for event in run.events:
            if event.type == "restore":
                yield event.t_us, float(event.fields.get("step") or 0), number
            elif event.type == "window":
                begin_us, end_us = find_interval_us(event)
                yield begin_us, float(event.fields.get("first_step") or 1) - 1, number
                yield end_us, float(event.fields.get("last_step") or 0), number
