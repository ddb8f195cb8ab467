"""What the worker's threads share, and what they hand to each other: claimed items, and what became
of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.inference.items import Item
from holdfast.inference.queue.protocol import Queue
from holdfast.inference.results.postgres import Claim, Failure, PostgresResults
from holdfast.inference.worker.settings import WorkerSettings
from holdfast.inference.worker.telemetry import WorkerTelemetry
from holdfast.runtime.shutdown import Shutdown


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimedItem:
    item: Item
    claim: Claim


@dataclass(kw_only=True, slots=True)
class Outcome:
    """Of one micro-batch."""

    values: dict[Claim, str] = field(default_factory=dict[Claim, str])
    failures: list[Failure] = field(default_factory=list[Failure])
    seconds: float = 0.0
    """What predicting it took."""
    untried: Sequence[ClaimedItem] = ()
    """Left for another micro-batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    queue: Queue
    results: PostgresResults
    settings: WorkerSettings
    shutdown: Shutdown
    telemetry: WorkerTelemetry


class BatchSizer:
    """How many items a micro-batch may have so that it lasts no longer than a drain can wait.

    Starts small and doubles at most, so that a slow predictor is met with few items at stake."""

    def __init__(self, *, most: int, longest_s: float) -> None:
        self._most = most
        self._longest_s = longest_s
        self.size = min(4, most)

    def observe(self, items: int, seconds: float) -> None:
        """One prediction of `items` took `seconds`."""
        fits = items * self._longest_s / max(seconds, 1e-9)
        self.size = max(1, int(min(self._most, 2 * self.size, fits)))
