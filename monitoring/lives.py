"""Groups the events of a job into lives: one life is one process from its first event to its last.

Called by gang.py and lanes.py. Guarantee: lives are in the order of their beginning.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from monitoring.events import Event

SIGNAL_WORDS = ("evict",)  # written by whoever evicts, about a process that is not its own
NODE_WORDS = ("scheduled", "node_up", "node_down")  # written by the node watcher


@dataclass(slots=True)
class Life:
    process: str
    events: list[Event] = field(default_factory=list[Event])
    ends_us: int = 0
    """Last event, or the eviction that ended it."""

    @property
    def begins_us(self) -> int:
        return self.events[0].t_us

    @property
    def rank(self) -> int:
        return int(self.first("start", "rank", 0))

    @property
    def exit_code(self) -> int | None:
        """None: it was killed, or it is still alive."""
        code = self.first("exit", "code", -1)
        return None if code == -1 else int(code)

    def first(self, word: str, name: str, default: float) -> float:
        """A field of the first event of that word."""
        for event in self.events:
            if event.word == word:
                value = event.fields.get(name)
                return default if value is None else value
        return default

    def of(self, *words: str) -> list[Event]:
        return [event for event in self.events if event.word in words]


def lives(events: Iterable[Event]) -> list[Life]:
    by_process: dict[str, Life] = {}
    for event in events:
        if event.word not in SIGNAL_WORDS and event.word not in NODE_WORDS:
            by_process.setdefault(event.process, Life(process=event.process)).events.append(event)
    for life in by_process.values():
        life.ends_us = life.events[-1].t_us
    return sorted(by_process.values(), key=lambda life: life.begins_us)


def evictions(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.word == "evict"]


def seconds_before(event: Event, name: str = "seconds") -> tuple[int, int]:
    """The interval that an event reports at its end, as begin and end."""
    return event.t_us - round(float(event.fields.get(name) or 0) * 1e6), event.t_us


def pairs(lives_in_order: Sequence[Life]) -> Iterable[tuple[Life, Life | None]]:
    """Each life with the one after it."""
    return zip_longest(lives_in_order, lives_in_order[1:])  # pyright: ignore[reportReturnType]
