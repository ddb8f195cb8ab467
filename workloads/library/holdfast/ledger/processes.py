"""Groups the events of a job by process: one run is one process from its first event to its last.

Guarantee: runs are in the order of their beginning. Every event is looked at once; what follows
asks a run by type.
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
    by_type: dict[str, list[Event]] = field(
        default_factory=lambda: defaultdict[str, list[Event]](list)
    )
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

    def first(self, event_type: str, name: str, default: float) -> float:
        """A field of the first event of that type."""
        found = self.of(event_type)
        value = found[0].fields.get(name) if found else None
        return default if value is None else value

    def of(self, event_type: str) -> list[Event]:
        return self.by_type.get(event_type, [])

    def end_with(self, exit_event: Event) -> None:
        """Written for it by another process."""
        self.events.append(exit_event)
        self.by_type["exit"].append(exit_event)
        self.ends_us = max(self.ends_us, exit_event.t_us)

    def newest_us(self, *types: str) -> int:
        """When the last event of any of these types was written; the end of the run if none was."""
        return max(
            (found[-1].t_us for each in types if (found := self.of(each))), default=self.ends_us
        )


def process_runs(events: Iterable[Event]) -> list[ProcessRun]:
    by_process: dict[str, ProcessRun] = {}
    for event in events:
        if event.type in FOREIGN_TYPES:
            continue
        run = by_process.get(event.process)
        if run is None:
            run = by_process[event.process] = ProcessRun(
                process=event.process, begins_us=event.t_us
            )
        run.events.append(event)
        run.by_type[event.type].append(event)
    for run in by_process.values():
        run.ends_us = run.events[-1].t_us
    return sorted(by_process.values(), key=lambda run: run.begins_us)


def computing_us(events: Iterable[Event], begin_us: int, end_us: int) -> int:
    """Time between two moments in which some process of the job was alive, by its first and last
    event.
    """
    counted = 0
    until = begin_us
    for run in process_runs(events):
        low = max(run.begins_us, until)
        high = min(run.ends_us, end_us)
        if low < high:
            counted = counted + high - low
            until = high
    return counted


def evictions(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.type == "evict"]


def seconds_before(event: Event, name: str = "seconds") -> tuple[int, int]:
    """The interval that an event reports at its end, as begin and end."""
    return event.t_us - round((event.fields.get(name) or 0) * 1e6), event.t_us


def pairs(runs_in_order: Sequence[ProcessRun]) -> Iterable[tuple[ProcessRun, ProcessRun | None]]:
    """Each run with the one after it."""
    return zip_longest(runs_in_order, runs_in_order[1:])  # pyright: ignore[reportReturnType]
