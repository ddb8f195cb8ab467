"""Where exporter and mover read event lines: a folder of files, followed from where the last pass stopped."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from holdfast.ledger.events import Event, Reading, Tail, read_folder


@dataclass(frozen=True, slots=True)
class Lines:
    """Of one writer, in the order of writing."""

    lines: Sequence[bytes]
    job: str = ""
    """By the labels of the pod that wrote them; empty where only the lines themselves name a job."""
    namespace: str = ""
    pod: str = ""
    """Empty where no pod is known to have written them."""


class EventSource(Protocol):
    def news(self) -> Iterable[Lines]:
        """What was written since the last call; one item for each writer."""
        ...

    def of_job(self, job: str, begin_s: float, namespace: str = "") -> Reading:
        """All that a job of this namespace (empty: of any) wrote since a moment. Unjudged where that cannot be had whole."""
        ...


@dataclass(slots=True)
class Folder:
    path: Path
    tails: dict[Path, Tail] = field(default_factory=dict[Path, Tail])

    def news(self) -> Iterable[Lines]:
        for path in sorted(self.path.rglob("*.jsonl")):
            yield Lines(self.tails.setdefault(path, Tail(path)).read())

    def of_job(self, job: str, begin_s: float, namespace: str = "") -> Reading:
        return of(job, begin_s, read_folder(self.path))


def of(job: str, begin_s: float, reading: Reading) -> Reading:
    def belongs(event: Event) -> bool:
        return event.job == job and event.t_us >= begin_s * 1e6

    return Reading([event for event in reading.events if belongs(event)], reading.problems)
