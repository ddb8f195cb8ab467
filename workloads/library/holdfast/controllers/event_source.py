"""Event lines as exporter and mover get them: of each writer apart."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Lines:
    """Of one writer, in the order of writing."""

    lines: Sequence[bytes]
    job: str = ""
    """By the labels of the pod that wrote them; empty where only the lines themselves name a job.
    """
    namespace: str = ""
    pod: str = ""
    """Empty where no pod is known to have written them."""


class EventSource(Protocol):
    def news(self) -> Iterable[Lines]:
        """What was written since the last call; one item for each writer."""
        ...
