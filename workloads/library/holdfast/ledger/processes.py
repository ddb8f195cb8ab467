"""Groups the events of a job by process: a run is one process from its first event to its last.

Guarantee: runs are in the order of their first events. Every event is read once; later code selects
events of a run by type.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from holdfast.ledger.events import Event

SIGNAL_TYPES = frozenset({"evict"})  # written by the evictor, about a process that is not its own
# Written by the node watcher and the mover.
NODE_TYPES = frozenset({"scheduled", "admitted", "node_up", "node_down", "node_faulty", "moved"})
FOREIGN_TYPES = SIGNAL_TYPES | NODE_TYPES


@dataclass(slots=True)
class ProcessRun:
    process: str
    events: list[Event] = field(default_factory=list)
    events_by_type: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    begins_us: int = 0
    ends_us: int = 0
    """Last event, or the eviction that ended it."""

    @property
    def rank(self) -> int:
        return int(self.first_value("start", "rank", 0))

    @property
    def exit_code(self) -> int | None:
        """None: it was killed, or it is still alive."""
        code = self.first_value("exit", "code", -1)
        return None if code == -1 else int(code)

    def first_value(self, event_type: str, name: str, default: float) -> float:
        """Returns a field of the first event of that type."""
        events = self.select(event_type)
        if not events:
            return default
        value = events[0].fields.get(name)
        return default if value is None else value

    def select(self, event_type: str) -> list[Event]:
        """Returns the events of that type."""
        return self.events_by_type.get(event_type, [])

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.events_by_type[event.type].append(event)

    def end_with(self, exit_event: Event) -> None:
        """Adds the exit that another process wrote for it."""
        self.events.append(exit_event)
        self.events_by_type["exit"].append(exit_event)
        self.ends_us = max(self.ends_us, exit_event.t_us)

    def newest_us(self, *types: str) -> int:
        """Returns the time of the last event of any of these types, or the end of the run."""
        times: list[int] = []
        for event_type in types:
            events = self.select(event_type)
            if events:
                times.append(events[-1].t_us)
        return max(times, default=self.ends_us)


def process_runs(events: Iterable[Event]) -> list[ProcessRun]:
    runs: dict[str, ProcessRun] = {}
    for event in events:
        if event.type in FOREIGN_TYPES:
            continue
        run = runs.get(event.process)
        if run is None:
            run = ProcessRun(process=event.process, begins_us=event.t_us)
            runs[event.process] = run
        run.add(event)
    for run in runs.values():
        run.ends_us = run.events[-1].t_us
    return sorted(runs.values(), key=lambda run: run.begins_us)


def computing_us(events: Iterable[Event], begin_us: int, end_us: int) -> int:
    """Returns the time between two moments in which some process of the job was alive.

    A process is alive from its first event to its last.
    """
    total_us = 0
    until_us = begin_us
    for run in process_runs(events):
        low_us = max(run.begins_us, until_us)
        high_us = min(run.ends_us, end_us)
        if low_us < high_us:
            total_us += high_us - low_us
            until_us = high_us
    return total_us


def select_evictions(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.type == "evict"]


def find_interval_us(event: Event, name: str = "seconds") -> tuple[int, int]:
    """Returns begin and end of the interval that an event reports at its end."""
    seconds = event.fields.get(name) or 0
    return event.t_us - round(seconds * 1e6), event.t_us


def pair_with_next(runs: Sequence[ProcessRun]) -> Iterable[tuple[ProcessRun, ProcessRun | None]]:
    """Yields each run with the run after it; the last one with None."""
    return zip_longest(runs, runs[1:])  # pyright: ignore[reportReturnType]
