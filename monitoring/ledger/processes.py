"""Groups the events of a job into lives: one life is one process from its first event to its last.

Called by gang.py and lanes.py. Guarantee: lives are in the order of their beginning. Every event is looked at
once; what follows asks a life by word.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from monitoring.ledger.events import Event

SIGNAL_WORDS = frozenset({"evict"})  # written by whoever evicts, about a process that is not its own
NODE_WORDS = frozenset({"scheduled", "node_up", "node_down"})  # written by the node watcher
FOREIGN_WORDS = SIGNAL_WORDS | NODE_WORDS


@dataclass(slots=True)
class Life:
    process: str
    events: list[Event] = field(default_factory=list[Event])
    by_word: dict[str, list[Event]] = field(default_factory=lambda: defaultdict[str, list[Event]](list))
    begins_us: int = 0
    ends_us: int = 0
    """Last event, or the eviction that ended it."""

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
        found = self.of(word)
        value = found[0].fields.get(name) if found else None
        return default if value is None else value

    def of(self, word: str) -> list[Event]:
        return self.by_word.get(word, [])

    def newest_us(self, *words: str) -> int:
        """When the last event of any of these words was written; the end of the life if none was."""
        return max((found[-1].t_us for word in words if (found := self.of(word))), default=self.ends_us)


def lives(events: Iterable[Event]) -> list[Life]:
    by_process: dict[str, Life] = {}
    for event in events:
        word = event.word
        if word in FOREIGN_WORDS:
            continue
        life = by_process.get(event.process)
        if life is None:
            life = by_process[event.process] = Life(process=event.process, begins_us=event.t_us)
        life.events.append(event)
        life.by_word[word].append(event)
    for life in by_process.values():
        life.ends_us = life.events[-1].t_us
    return sorted(by_process.values(), key=lambda life: life.begins_us)


def evictions(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.word == "evict"]


def seconds_before(event: Event, name: str = "seconds") -> tuple[int, int]:
    """The interval that an event reports at its end, as begin and end."""
    return event.t_us - round((event.fields.get(name) or 0) * 1e6), event.t_us


def pairs(lives_in_order: Sequence[Life]) -> Iterable[tuple[Life, Life | None]]:
    """Each life with the one after it."""
    return zip_longest(lives_in_order, lives_in_order[1:])  # pyright: ignore[reportReturnType]
