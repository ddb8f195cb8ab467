"""The account of a training job: all ranks stop and start together, so one lane tells its time.

Called by ledger.py. The lane follows rank 0 of every attempt. Work is lost when a later attempt
restored a step before it; until then it counts as kept.
"""

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from monitoring.ledger.account import Account, Point, Recovery
from monitoring.ledger.events import Event
from monitoring.ledger.processes import Life, evictions, lives, pairs, seconds_before
from monitoring.ledger.timeline import Painting, State

# A window this much slower than the job's usual step counts as straggling, with the part beyond the usual.
SLOW_FACTOR = 1.5
NOTHING_LOST = 1 << 62


class Work(NamedTuple):
    """One window line: steps done between two moments."""

    begin_us: int
    end_us: int
    steps: int
    last_step: int

    def lost(self, keep: int) -> int:
        """Steps of it after the last one that was kept."""
        return min(self.steps, max(0, self.last_step - keep))


def account(events: Sequence[Event], begin_us: int, end_us: int, *, usual_step_s: float | None = None) -> Account:
    evicts = evictions(events)
    leads = _close([life for life in lives(events) if life.rank == 0], evicts)
    work = [_work(life) for life in leads]
    kept = _kept_steps(leads)
    usual = usual_step_s or _usual_step_s(work)
    painting = Painting(begin_us, end_us, base=State.RESTARTING)
    for event in events:
        if event.word == "scheduled":
            painting.add(*seconds_before(event), State.WAITING)
    for (life, after), done, keep in zip(pairs(leads), work, kept, strict=True):
        painting.within(life.begins_us, after.begins_us if after else end_us)
        _paint_life(painting, life, after)
        _paint_work(painting, done, keep, usual)
    return Account(
        spans=tuple(painting.spans()),
        lanes=1,
        recoveries=tuple(_recoveries(leads, work, evicts)),
        lost=sum(_lost_steps(done, keep) for done, keep in zip(work, kept, strict=True)),
        points=lambda: (point for n, life in enumerate(leads) for point in _progress(life, n)),
        commits_us=tuple(e.t_us for e in events if e.word == "commit"),
        failed_saves=sum(e.word == "save_failed" for e in events),
    )


def _work(life: Life) -> list[Work]:
    done: list[Work] = []
    for window in life.of("window"):
        said, end = window.fields, window.t_us
        last = int(said.get("last_step") or 0)
        steps = last - int(said.get("first_step") or 0) + 1
        if steps > 0:
            done.append(Work(end - round((said.get("seconds") or 0) * 1e6), end, steps, last))
    return done


def _close(leads: list[Life], evicts: Sequence[Event]) -> list[Life]:
    """A killed process cannot say when it died: the first eviction before the next life does."""
    times = [e.t_us for e in evicts]
    for life, after in pairs(leads):
        if life.exit_code is None:
            first = bisect_left(times, life.ends_us)
            if first < len(times) and times[first] < (after.begins_us if after else NOTHING_LOST):
                life.ends_us = times[first]
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


def _usual_step_s(work: Iterable[Iterable[Work]]) -> float:
    paces = [(done.end_us - done.begin_us) / done.steps for life in work for done in life]
    return statistics.median(paces) / 1e6 if paces else 0.0


def _paint_life(painting: Painting, life: Life, after: Life | None) -> None:
    stops = life.of("stop")
    painting.add(_ready_us(life), stops[0].t_us if stops else life.ends_us, State.IDLE)
    for event in life.of("restore"):
        painting.add(*seconds_before(event), State.RESTORING)
    for event in life.of("save"):
        painting.add(*seconds_before(event, "blocking_seconds"), State.CHECKPOINTING)
    if after is not None and life.exit_code is None:
        # Work since the last line left no trace but the time it took.
        painting.add(life.newest_us("window", "restore", "save"), life.ends_us, State.LOST)


def _ready_us(life: Life) -> int:
    """When the process could work: its state was loaded, or its first window began."""
    restores, windows = life.of("restore"), life.of("window")
    if restores and not (windows and windows[0].t_us < restores[0].t_us):
        return restores[0].t_us
    return seconds_before(windows[0])[0] if windows else life.ends_us


def _paint_work(painting: Painting, work: Iterable[Work], keep: int, usual_step_s: float) -> None:
    usual_us = round(usual_step_s * 1e6)
    for done in work:
        begin, turn, steps, last_step = done
        if last_step > keep:
            lost = done.lost(keep)
            turn -= (turn - begin) * lost // steps
            painting.add(turn, done.end_us, State.LOST)
            steps -= lost
        painting.add(begin, turn, State.PRODUCTIVE)
        if turn - begin > usual_us * steps * SLOW_FACTOR:
            painting.add(begin + usual_us * steps, turn, State.STRAGGLING)


def _lost_steps(work: Iterable[Work], keep: int) -> int:
    return sum(done.lost(keep) for done in work if done.last_step > keep)


def _recoveries(leads: Sequence[Life], work: Sequence[Sequence[Work]], evicts: Sequence[Event]) -> Iterable[Recovery]:
    begins = [life.begins_us for life in leads]
    next_worker = _next_workers(leads)
    lost: dict[tuple[int, int], int] = {}
    for evict in evicts:
        after = bisect_right(begins, evict.t_us)
        hit, back = after - 1, next_worker[after]
        signal, target = str(evict.fields.get("signal", "")), str(evict.fields.get("target", ""))
        if back is None:
            yield Recovery(evict.t_us, signal, target, None)
            continue
        if hit >= 0 and (hit, back) not in lost:
            lost[hit, back] = _lost_steps(work[hit], _restored_step(leads[back]))
        back_us = seconds_before(leads[back].of("window")[0])[0]
        yield Recovery(evict.t_us, signal, target, back_us, lost.get((hit, back), 0))


def _next_workers(leads: Sequence[Life]) -> list[int | None]:
    """For each position the first life from there on that worked."""
    found: list[int | None] = [None]
    for number in range(len(leads) - 1, -1, -1):
        found.append(number if leads[number].of("window") else found[-1])
    return found[::-1]


def _progress(life: Life, number: int) -> Iterable[Point]:
    for event in life.events:
        if event.word == "restore":
            yield event.t_us, float(event.fields.get("step") or 0), number
        elif event.word == "window":
            begin, end = seconds_before(event)
            yield begin, float(event.fields.get("first_step") or 1) - 1, number
            yield end, float(event.fields.get("last_step") or 0), number
