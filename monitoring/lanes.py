"""The account of a batch job: workers come and go alone, so time is counted in lanes.

Called by ledger.py. A lane is one worker and whoever takes its place. A job with n workers at most at
once has n lanes from its first event to its last; wall time is their sum (worker-seconds).
"""

import heapq
from collections.abc import Iterable, Sequence

from monitoring.events import Event
from monitoring.gang import Account, Recovery
from monitoring.lives import Life, evictions, lives
from monitoring.spans import Interval, Span, State, paint

STARTED = ("claimed", "stored", "acked", "released", "item_failed", "dead_lettered")
ON_ITS_WAY_US = 1_000_000  # a line can be written between the eviction's line and its effect
KEPT = frozenset({"claimed", "stored", "acked", "item_failed", "dead_lettered"})


def account(events: Sequence[Event], begin_us: int, end_us: int) -> Account:
    evicts, workers = evictions(events), lives(events)
    victims = _victims(workers, evicts)
    for evict, victim in zip(evicts, victims, strict=True):
        if victim and victim.exit_code is None:
            victim.ends_us = max(victim.ends_us, evict.t_us)
    spans: list[Span] = []
    lanes = _lanes(workers)
    for number, lane in enumerate(lanes):
        intervals = [i for life in lane for i in _of_life(life)]
        last = lane[-1]
        if last.exit_code == 0:
            intervals.append(Interval(last.ends_us, end_us, State.IDLE))
        spans += paint(begin_us, end_us, intervals, lane=number, base=State.RESTARTING)
    return Account(
        spans=tuple(spans),
        lanes=len(lanes),
        recoveries=tuple(_recoveries(workers, evicts, victims)),
        lost=sum(_in_hand(life) for life in workers),
        progress=tuple(_progress(events)),
    )


def _victims(workers: Sequence[Life], evicts: Sequence[Event]) -> list[Life | None]:
    """Who each eviction hit: the named process, else whoever stopped at that moment and is not taken yet."""
    found: list[Life | None] = []
    taken: set[str] = set()
    for evict in evicts:
        named = [life for life in workers if _is_named(life, str(evict.fields.get("target", "")))]
        stopped = [life for life in workers if life.process not in taken and _stopped_at(life, evict.t_us)]
        victim = (named or sorted(stopped, key=lambda life: abs(life.ends_us - evict.t_us)) or [None])[0]
        found.append(victim)
        taken |= {victim.process} if victim else set()
    return found


def _is_named(life: Life, target: str) -> bool:
    """A target is the name of a process, or pod-<process id>; a process is called <host>-<process id>-<random>."""
    pid = target.removeprefix("pod-")
    return life.process == target or (pid.isdecimal() and f"-{pid}-" in life.process)


def _stopped_at(life: Life, t_us: int) -> bool:
    """Killed: no event after the eviction, but for one on its way. With notice: it left early, and after it."""
    if life.begins_us > t_us:
        return False
    if life.exit_code is None:
        return life.ends_us <= t_us + ON_ITS_WAY_US
    return life.exit_code != 0 and life.ends_us >= t_us


def _lanes(workers: Sequence[Life]) -> list[list[Life]]:
    """As few lanes as hold all lives without overlap; the one longest free takes the next."""
    lanes: list[list[Life]] = []
    free: list[tuple[int, int]] = []
    for life in workers:
        if free and free[0][0] <= life.begins_us:
            _, number = heapq.heappop(free)
        else:
            number = len(lanes)
            lanes.append([])
        lanes[number].append(life)
        heapq.heappush(free, (life.ends_us, number))
    return lanes


def _of_life(life: Life) -> Iterable[Interval]:
    started = [e.t_us for e in life.events if e.word in STARTED]
    if not started:
        return
    yield Interval(started[0], life.ends_us, State.IDLE)
    in_hand, before_us = 0, life.begins_us
    for event in life.events:
        if in_hand > 0:
            yield Interval(before_us, event.t_us, State.PRODUCTIVE if event.word in KEPT else State.LOST)
        in_hand = max(0, in_hand + _change(event))
        before_us = event.t_us
    if in_hand > 0:
        yield Interval(before_us, life.ends_us, State.LOST)


def _change(event: Event) -> int:
    if event.word == "claimed":
        return items(event)
    if event.word in ("stored", "released"):
        return -items(event)
    return -1 if event.word in ("item_failed", "dead_lettered") else 0


def items(event: Event) -> int:
    """`items` is a number, or the list of their ids."""
    value = event.fields.get("items", 0)
    return len(value) if isinstance(value, list) else int(value)


def _in_hand(life: Life) -> int:
    left = 0
    for event in life.events:
        left = max(0, left + _change(event))
    return left


def _recoveries(workers: Sequence[Life], evicts: Sequence[Event], victims: Sequence[Life | None]) -> Iterable[Recovery]:
    """A worker is replaced by the first one that starts after its eviction; each replacement counts once."""
    taken: set[str] = set()
    for evict, victim in zip(evicts, victims, strict=True):
        successor = next((w for w in workers if w.begins_us > evict.t_us and w.process not in taken), None)
        back = None
        if successor:
            taken.add(successor.process)
            back = next((e.t_us for e in successor.events if e.word in STARTED), None)
        signal, target = str(evict.fields.get("signal", "")), str(evict.fields.get("target", ""))
        yield Recovery(evict.t_us, signal, target, back, _in_hand(victim) if victim else 0)


def _progress(events: Iterable[Event]) -> Iterable[tuple[int, float, int]]:
    done = 0
    for event in events:
        if event.word == "stored":
            done += items(event)
            yield event.t_us, float(done), 0
