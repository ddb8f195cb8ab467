"""The account of a training job: all ranks stop and start together, so one lane tells its time.

Called by ledger.py. The lane follows rank 0 of every attempt. Work is lost when a later attempt
restored a step before it; until then it counts as kept.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from monitoring.events import Event
from monitoring.lives import Life, evictions, lives, pairs, seconds_before
from monitoring.spans import Interval, Span, State, paint

# A window this much slower than the job's usual step counts as straggling, with the part beyond the usual.
SLOW_FACTOR = 1.5
NOTHING_LOST = 1 << 62


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

    @property
    def seconds(self) -> float | None:
        return None if self.back_us is None else (self.back_us - self.t_us) / 1e6


@dataclass(frozen=True, slots=True)
class Account:
    spans: tuple[Span, ...]
    lanes: int
    recoveries: tuple[Recovery, ...]
    lost: int
    """Steps, or items, that were done again."""
    progress: tuple[tuple[int, float, int], ...]
    """(time, steps or items done, life): one line of the chart for each life."""
    commits_us: tuple[int, ...] = ()
    failed_saves: int = 0


def account(events: Sequence[Event], begin_us: int, end_us: int, *, usual_step_s: float | None = None) -> Account:
    leads = _close([life for life in lives(events) if life.rank == 0], evictions(events))
    kept = _kept_steps(leads)
    usual = usual_step_s or _usual_step_s(leads)
    intervals = list(_waits(events))
    for (life, after), keep in zip(pairs(leads), kept, strict=True):
        limit = after.begins_us if after else end_us
        intervals += [_clip(i, life.begins_us, limit) for i in _of_life(life, after, keep, usual)]
    return Account(
        spans=tuple(paint(begin_us, end_us, intervals, base=State.RESTARTING)),
        lanes=1,
        recoveries=tuple(_recoveries(leads, evictions(events))),
        lost=sum(_lost_steps(life, keep) for life, keep in zip(leads, kept, strict=True)),
        progress=tuple(point for n, life in enumerate(leads) for point in _progress(life, n)),
        commits_us=tuple(e.t_us for e in events if e.word == "commit"),
        failed_saves=sum(e.word == "save_failed" for e in events),
    )


def _close(leads: list[Life], evicts: Sequence[Event]) -> list[Life]:
    """A killed process cannot say when it died: the first eviction before the next life does."""
    for life, after in pairs(leads):
        if life.exit_code is None:
            limit = after.begins_us if after else NOTHING_LOST
            deaths = [e.t_us for e in evicts if life.ends_us <= e.t_us < limit]
            life.ends_us = deaths[0] if deaths else life.ends_us
    return leads


def _kept_steps(leads: Sequence[Life]) -> list[int]:
    """For each life the last step that no later life went back behind."""
    floor, kept = NOTHING_LOST, list[int]()
    for life in reversed(leads):
        kept.append(floor)
        floor = min(floor, _restored_step(life))
    return kept[::-1]


def _restored_step(life: Life) -> int:
    """Where a life began; a process that died before it restored moved nothing back."""
    first_window = life.first("window", "first_step", NOTHING_LOST + 1)
    return int(life.first("restore", "step", first_window - 1))


def _usual_step_s(leads: Iterable[Life]) -> float:
    paces = [
        float(w.fields.get("seconds") or 0) / steps
        for life in leads
        for w in life.of("window")
        if (steps := _steps(w)) > 0
    ]
    return statistics.median(paces) if paces else 0.0


def _steps(window: Event) -> int:
    return int(window.fields.get("last_step") or 0) - int(window.fields.get("first_step") or 0) + 1


def _waits(events: Iterable[Event]) -> Iterable[Interval]:
    return (Interval(*seconds_before(e), State.WAITING) for e in events if e.word == "scheduled")


def _clip(interval: Interval, begin_us: int, end_us: int) -> Interval:
    return Interval(max(interval.begin_us, begin_us), min(interval.end_us, end_us), interval.state)


def _of_life(life: Life, after: Life | None, keep: int, usual_step_s: float) -> Iterable[Interval]:
    ready_us = _ready_us(life)
    stops = [e.t_us for e in life.of("stop")]
    yield Interval(ready_us, stops[0] if stops else life.ends_us, State.IDLE)
    for event in life.events:
        if event.word == "restore":
            yield Interval(*seconds_before(event), State.RESTORING)
        elif event.word == "save":
            yield Interval(*seconds_before(event, "blocking_seconds"), State.CHECKPOINTING)
        elif event.word == "window":
            yield from _of_window(event, keep, usual_step_s)
    if after is not None and life.exit_code is None:
        # Work since the last line left no trace but the time it took.
        last = max((e.t_us for e in life.of("window", "restore", "save")), default=life.ends_us)
        yield Interval(last, life.ends_us, State.LOST)


def _ready_us(life: Life) -> int:
    """When the process could work: its state was loaded, or its first window began."""
    for event in life.events:
        if event.word == "restore":
            return event.t_us
        if event.word == "window":
            return seconds_before(event)[0]
    return life.ends_us


def _of_window(window: Event, keep: int, usual_step_s: float) -> Iterable[Interval]:
    begin, end = seconds_before(window)
    steps, lost = _steps(window), _lost_of(window, keep)
    if steps <= 0:
        return
    turn = end - (end - begin) * lost // steps
    yield Interval(begin, turn, State.PRODUCTIVE)
    yield Interval(turn, end, State.LOST)
    usual_us = round(usual_step_s * 1e6) * (steps - lost)
    if turn - begin > usual_us * SLOW_FACTOR:
        yield Interval(begin + usual_us, turn, State.STRAGGLING)


def _lost_steps(life: Life, keep: int) -> int:
    return sum(_lost_of(window, keep) for window in life.of("window"))


def _lost_of(window: Event, keep: int) -> int:
    last = int(window.fields.get("last_step") or 0)
    return min(max(0, _steps(window)), max(0, last - keep))


def _recoveries(leads: Sequence[Life], evicts: Sequence[Event]) -> Iterable[Recovery]:
    for evict in evicts:
        before = [life for life in leads if life.begins_us <= evict.t_us]
        back = next((life for life in leads if life.begins_us > evict.t_us and life.of("window")), None)
        lost = _lost_steps(before[-1], _restored_step(back)) if before and back else 0
        signal, target = str(evict.fields.get("signal", "")), str(evict.fields.get("target", ""))
        back_us = seconds_before(back.of("window")[0])[0] if back else None
        yield Recovery(evict.t_us, signal, target, back_us, lost)


def _progress(life: Life, number: int) -> Iterable[tuple[int, float, int]]:
    for event in life.events:
        if event.word == "restore":
            yield event.t_us, float(event.fields.get("step") or 0), number
        elif event.word == "window":
            begin, end = seconds_before(event)
            yield begin, float(event.fields.get("first_step") or 1) - 1, number
            yield end, float(event.fields.get("last_step") or 0), number
