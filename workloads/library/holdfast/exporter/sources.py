"""Where exporter and mover read event lines: a folder of files, followed from where the last pass stopped.

Guarantee: half a line waits for its other half.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from holdfast.ledger.events import Event, Reading, read_folder


@dataclass(frozen=True, slots=True)
class Lines:
    """Of one writer, in the order of writing."""

    lines: Sequence[bytes]
    job: str = ""
    """Whose pod wrote them; empty where only the lines themselves name a job."""


class Source(Protocol):
    def news(self) -> Iterable[Lines]:
        """What was written since the last call; one item for each writer."""
        ...

    def of_job(self, job: str, begin_s: float) -> Reading:
        """All that a job wrote since a moment. Unjudged where that cannot be had whole."""
        ...


@dataclass(slots=True)
class Folder:
    path: Path
    offsets: dict[Path, int] = field(default_factory=dict[Path, int])

    def news(self) -> Iterable[Lines]:
        for path in sorted(self.path.rglob("*.jsonl")):
            with path.open("rb") as handle:
                if self.offsets.get(path, 0) > path.stat().st_size:
                    self.offsets[path] = 0  # replaced by a shorter file
                handle.seek(self.offsets.get(path, 0))
                text = handle.read()
            whole = text[: text.rfind(b"\n") + 1]
            self.offsets[path] = self.offsets.get(path, 0) + len(whole)
            yield Lines(whole.splitlines())

    def of_job(self, job: str, begin_s: float) -> Reading:
        return of(job, begin_s, read_folder(self.path))


def of(job: str, begin_s: float, reading: Reading) -> Reading:
    def belongs(event: Event) -> bool:
        return event.job == job and event.t_us >= begin_s * 1e6

    return Reading([event for event in reading.events if belongs(event)], reading.problems)
