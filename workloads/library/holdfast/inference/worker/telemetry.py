"""Event lines of a worker, and the failpoints at which a test may end it."""

from collections.abc import Callable
from enum import StrEnum

from holdfast.inference.errors import QueueUnavailable
from holdfast.inference.results.connect import TRANSIENT, permanent
from holdfast.runtime.events import EventLog
from holdfast.support.retry import Retry


class Failpoint(StrEnum):
    """In the order in which an item passes them."""

    PULLED = "pulled"  # delivered by the queue
    LEASED = "leased"  # held and claimed
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
        """A call failed and is tried again; counts against no item."""
        source = "queue" if isinstance(error, QueueUnavailable) else "database"
        self.emit("retrying", source=source)

    def retry(self, give_up: Callable[[], bool]) -> Retry:
        """For calls to the database and the queue. InputError for a refusal that no retry cures."""

        def failed(error: Exception) -> None:
            refusal = permanent(error)
            if refusal:
                raise refusal from None
            self.retrying(error)

        return Retry(transient=TRANSIENT, give_up=give_up, on_error=failed)
