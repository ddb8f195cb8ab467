"""The account of a training job: all ranks stop and start together, so one lane shows its time.

An elastic gang has a lane for each of its places: one without a node is degraded while the others
work. The lane follows rank 0 of every attempt. StepWindow is lost when a later attempt restored a
step before it; until then it counts as kept.
"""

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.ledger.account import JobLedger, Point, Recovery, Restart, head
from holdfast.ledger.elastic_gang import gang_sizes, lanes_of, node_time_us
from holdfast.ledger.events import Event
from holdfast.ledger.processes import ProcessRun, evictions, pairs, process_runs, seconds_before
from holdfast.ledger.timeline import LaneTimeline, State

# A window this much slower than the job's usual step counts as straggling, with the part beyond the
# usual.
SLOW_FACTOR = 1.5
NOTHING_LOST = 1 << 62


class StepWindow(NamedTuple):
    """One window line: steps done between two moments."""

    begin_us: int
    end_us: int
    steps: int
    last_step: int

    def lost(self, keep: int) -> int:
        """Steps of it after the last one that was kept."""
        return min(self.steps, max(0, self.last_step - keep))


def ledger(events: Sequence[Event]) -> JobLedger:
    begin_us = events[0].t_us
    end_us = events[-1].t_us
    evicts = evictions(events)
    leads = _close(_leads(process_runs(events)), evicts)
    work = [_work(run) for run in leads]
    kept = _kept_steps(leads)
    usual = _usual_step_s(work)
    sizes = gang_sizes(leads)
    places = max((size.places for size in sizes), default=1)
    timeline = LaneTimeline(begin_us, end_us, base=State.RESTARTING)
    for event in events:
        if event.type == "scheduled":
            timeline.add(*seconds_before(event), State.WAITING)
    for (run, after), done, keep in zip(pairs(leads), work, kept, strict=True):
        timeline.within(run.begins_us, after.begins_us if after else end_us)
        _add_run(timeline, run, after)
        _add_work(timeline, done, keep, usual)
    lane = timeline.spans()
    return JobLedger(
        **head(events),
        lanes=places,
        totals_us=node_time_us(lane, sizes, places),
        drawn=lambda: lanes_of(lane, sizes, places),
        sizes=tuple(sizes),
        recoveries=tuple(_recoveries(leads, work, evicts)),
        lost=sum(_lost_steps(done, keep) for done, keep in zip(work, kept, strict=True)),
        points=lambda: (point for n, run in enumerate(leads) for point in _progress(run, n)),
        commits_us=tuple(e.t_us for e in events if e.type == "commit"),
        moves=sum(e.type == "moved" for e in events),
        restarts=tuple(_restarts(leads)),
    )


def _restarts(leads: Sequence[ProcessRun]) -> Iterable[Restart]:
    for before, run in zip([None, *leads], leads, strict=False):
        since_us = before.ends_us if before else run.begins_us
        for event in run.of("restore"):
            if event.fields.get("step"):
                seconds = max(0.0, (event.t_us - since_us) / 1e6)
                yield Restart(event.t_us, seconds, event.fields.get("source") == "memory")


def _leads(runs: Iterable[ProcessRun]) -> list[ProcessRun]:
    """Runs of rank 0. A launcher writes of itself only how it ended: that is how the ranks before
    it did.
    """
    found: list[ProcessRun] = []
    for run in (run for run in runs if run.rank == 0):
        launcher = run.by_type.keys() == {"exit"}
        if not (launcher and found):
            found.append(run)
        elif found[-1].exit_code is None:
            found[-1].end_with(run.of("exit")[0])
    return found


def _work(run: ProcessRun) -> list[StepWindow]:
    done: list[StepWindow] = []
    for window in run.of("window"):
        begin, end = seconds_before(window)
        last = int(window.fields.get("last_step") or 0)
        steps = last - int(window.fields.get("first_step") or 0) + 1
        if steps > 0:
            done.append(StepWindow(begin, end, steps, last))
    return done


def _close(leads: list[ProcessRun], evicts: Sequence[Event]) -> list[ProcessRun]:
    """A killed process leaves no line about its end: the first eviction before the next run dates
    it.
    """
    times = [e.t_us for e in evicts]
    for run, after in pairs(leads):
        if run.exit_code is None:
            first = bisect_left(times, run.ends_us)
            if first < len(times) and times[first] < (after.begins_us if after else NOTHING_LOST):
                run.ends_us = times[first]
    return leads


def _kept_steps(leads: Sequence[ProcessRun]) -> list[int]:
    """For each run the last step that no later run went back behind."""
    floor = NOTHING_LOST
    kept = list[int]()
    for run in reversed(leads):
        kept.append(floor)
        floor = min(floor, _restored_step(run))
    return kept[::-1]


def _restored_step(run: ProcessRun) -> int:
    """Where a run began; a process that died before it restored moved nothing back."""
    first_window = run.first("window", "first_step", NOTHING_LOST + 1)
    return int(run.first("restore", "step", first_window - 1))


def _usual_step_s(work: Iterable[Iterable[StepWindow]]) -> float:
    paces = []
    for run in work:
        for done in run:
            paces.append((done.end_us - done.begin_us) / done.steps)
    return statistics.median(paces) / 1e6 if paces else 0.0


def _add_run(timeline: LaneTimeline, run: ProcessRun, after: ProcessRun | None) -> None:
    stops = run.of("stop")
    timeline.add(_ready_us(run), stops[0].t_us if stops else run.ends_us, State.IDLE)
    for event in run.of("restore"):
        timeline.add(*seconds_before(event), State.RESTORING)
    for event in run.of("resized"):
        timeline.add(*seconds_before(event), State.RESTORING)
    for event in run.of("save"):
        timeline.add(*seconds_before(event, "blocking_seconds"), State.CHECKPOINTING)
    if after is not None and run.exit_code is None:
        # Work since the last line left no trace but the time it took.
        timeline.add(run.newest_us("window", "restore", "save"), run.ends_us, State.LOST)


def _ready_us(run: ProcessRun) -> int:
    """When the process could work: its state was loaded, or its first window began."""
    restores = run.of("restore")
    windows = run.of("window")
    if restores and not (windows and windows[0].t_us < restores[0].t_us):
        return restores[0].t_us
    return seconds_before(windows[0])[0] if windows else run.ends_us


def _add_work(
    timeline: LaneTimeline,
    work: Iterable[StepWindow],
    keep: int,
    usual_step_s: float,
) -> None:
    usual_us = round(usual_step_s * 1e6)
    for done in work:
        begin, turn, steps, last_step = done
        if last_step > keep:
            lost = done.lost(keep)
            turn -= (turn - begin) * lost // steps
            timeline.add(turn, done.end_us, State.LOST)
            steps -= lost
        timeline.add(begin, turn, State.PRODUCTIVE)
        if turn - begin > usual_us * steps * SLOW_FACTOR:
            timeline.add(begin + usual_us * steps, turn, State.STRAGGLING)


def _lost_steps(work: Iterable[StepWindow], keep: int) -> int:
    return sum(done.lost(keep) for done in work if done.last_step > keep)


def _recoveries(
    leads: Sequence[ProcessRun], work: Sequence[Sequence[StepWindow]], evicts: Sequence[Event]
) -> Iterable[Recovery]:
    begins = [run.begins_us for run in leads]
    next_worker = _next_workers(leads)
    lost: dict[tuple[int, int], int] = {}
    counted: int | None = None
    for evict in evicts:
        after = bisect_right(begins, evict.t_us)
        hit = after - 1
        back = next_worker[after]
        if hit == counted:
            continue  # pods of a gang are taken together, and it stops once
        counted = hit
        signal = str(evict.fields.get("signal", ""))
        target = str(evict.fields.get("target", ""))
        if back is None:
            yield Recovery(evict.t_us, signal, target, None)
            continue
        if hit >= 0 and (hit, back) not in lost:
            lost[hit, back] = _lost_steps(work[hit], _restored_step(leads[back]))
        back_us = seconds_before(leads[back].of("window")[0])[0]
        yield Recovery(evict.t_us, signal, target, back_us, lost.get((hit, back), 0))


def _next_workers(leads: Sequence[ProcessRun]) -> list[int | None]:
    """For each position the first run from there on that worked."""
    found: list[int | None] = [None]
    for number in range(len(leads) - 1, -1, -1):
        found.append(number if leads[number].of("window") else found[-1])
    return found[::-1]


def _progress(run: ProcessRun, number: int) -> Iterable[Point]:
    for event in run.events:
        if event.type == "restore":
            yield event.t_us, float(event.fields.get("step") or 0), number
        elif event.type == "window":
            begin, end = seconds_before(event)
            yield begin, float(event.fields.get("first_step") or 1) - 1, number
            yield end, float(event.fields.get("last_step") or 0), number
