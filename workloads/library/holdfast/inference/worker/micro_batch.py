"""Micro-batches: their items, their outcome and their size, and what the worker's threads share."""

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
    """The outcome of one micro-batch."""

    values: dict[Claim, str] = field(default_factory=dict[Claim, str])
    failures: list[Failure] = field(default_factory=list[Failure])
    seconds: float = 0.0
    """The time that the prediction took."""
    untried: Sequence[ClaimedItem] = ()
    """Items that go to another micro-batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    queue: Queue
    results: PostgresResults
    settings: WorkerSettings
    shutdown: Shutdown
    telemetry: WorkerTelemetry


class BatchSizer:
    """Limits the items of a micro-batch so that a drain can wait for it.

    It starts small and doubles at most, so that few items are at stake with a slow predictor.
    """

    def __init__(self, *, max_items: int, longest_s: float) -> None:
        self._max_items = max_items
        self._longest_s = longest_s
        self.size = min(4, max_items)

    def observe(self, items: int, seconds: float) -> None:
        """Adjusts the size after a prediction of `items` that took `seconds`."""
        fitting = items * self._longest_s / max(seconds, 1e-9)
        size = min(
            self._max_items,
            2 * self.size,
            fitting,
        )
        self.size = max(1, int(size))
