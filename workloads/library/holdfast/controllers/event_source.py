"""Defines where exporter and mover get event lines from, one writer at a time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of one writer, in the order of writing."""

    lines: Sequence[bytes]
    job: str = ""
    """The job by the labels of the pod that wrote them; empty if only the lines name a job."""
    namespace: str = ""
    pod: str = ""
    """The pod that wrote them; empty if none is known."""
    dropped: int = 0
    """About how many lines of this writer were not read, because it or all wrote too many."""
    index: int | None = None
    """The pod's completion index by its labels; None if it has none."""


class EventSource(Protocol):
    def news(self) -> Iterable[Lines]:
        """Returns the lines written since the last call, one item for each writer."""
        ...
