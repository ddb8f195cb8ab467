"""What the worker tells of itself: event lines, and the points at which the kill matrix kills it."""

from collections.abc import Callable
from enum import StrEnum

from holdfast.inference.queue.queue import QueueUnavailable
from holdfast.runtime.events import EventLog


class Step(StrEnum):
    PULLED = "pulled"  # delivered by the queue
    LEASED = "leased"  # held and claimed
    PREDICTING = "predicting"
    PREDICTED = "predicted"
    COMMITTED = "committed"  # results are durable
    ACKED = "acked"


def _pass(step: Step) -> None:
    """Nobody watches."""


class Report:
    def __init__(self, events: EventLog, at: Callable[[Step], None] = _pass) -> None:
        self.at = at
        self.emit = events.emit

    def trouble(self, error: Exception) -> None:
        """A call that failed and is tried again; counts against no item."""
        source = "queue" if isinstance(error, QueueUnavailable) else "database"
        self.emit("item_failed", item=None, error_class=source, failures=0)
