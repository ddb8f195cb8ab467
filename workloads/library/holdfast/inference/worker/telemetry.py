"""The event lines of a worker, and the failpoints at which a test may end it."""

from collections.abc import Callable
from enum import StrEnum

from holdfast.inference.errors import QueueUnavailable
from holdfast.inference.results.connect import TRANSIENT, explain_refusal
from holdfast.runtime.events import EventLog
from holdfast.support.retry import Retry


class Failpoint(StrEnum):
    """The points of an item's life, in order."""

    PULLED = "pulled"  # the queue delivered items
    LEASED = "leased"  # leases are kept and items claimed
    PREDICTING = "predicting"
    PREDICTED = "predicted"
    COMMITTED = "committed"  # results are durable
    ACKED = "acked"


class WorkerTelemetry:
    def __init__(
        self, events: EventLog, failpoint: Callable[[Failpoint], None] = lambda _: None
    ) -> None:
        self.failpoint = failpoint
        self.emit = events.emit

    def retrying(self, error: Exception) -> None:
        """Reports a call that failed and is retried; it counts against no item."""
        source = "queue" if isinstance(error, QueueUnavailable) else "database"
        self.emit("retrying", source=source)

    def retry(self, give_up: Callable[[], bool]) -> Retry:
        """Makes a retry for calls to the database and the queue.

        It raises InputError for a permanent refusal.
        """

        def check(error: Exception) -> None:
            refusal = explain_refusal(error)
            if refusal:
                raise refusal from None
            self.retrying(error)

        return Retry(transient=TRANSIENT, give_up=give_up, on_error=check)
