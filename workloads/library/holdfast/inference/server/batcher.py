"""The request queue of one model: admission, order and batches. Pure: no clock, no I/O.

Guarantees: a request leaves the queue once: in a batch, as late, or discarded. A batch has at most
`batch_items` and is taken in the order of arrival. A request that cannot be answered by its
deadline is refused on arrival, when that costs least, or else dropped before the device would work
for nothing.
"""

# Decision: infra/decisions/0048.

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from holdfast.inference.predictor.batch_time import BatchTime

SPARE = 1.2


@dataclass(kw_only=True, eq=False)
class Ticket:
    """One request, whose items are predicted in one batch. Times are monotonic seconds."""

    items: int
    arrived_s: float
    deadline_s: float


T = TypeVar("T", bound=Ticket)


@dataclass
class Batcher(Generic[T]):
    batch_items: int = 32
    queue_requests: int = 1024
    timing: BatchTime = field(default_factory=BatchTime)
    free_at_s: float = 0.0
    """The expected end of the batch in progress."""
    running: int = 0
    """The number of requests in the batch in progress."""
    _queue: list[T] = field(default_factory=list[T])
    _items: int = 0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def wait_s(self, now: float) -> float:
        """Estimates the time until the batch of a request that arrives now would start."""
        full_batches = self._items // self.batch_items
        running_s = max(0.0, self.free_at_s - now)
        return running_s + full_batches * self.timing.seconds(self.batch_items)

    def refusal(self, ticket: Ticket, now: float) -> tuple[str, float] | None:
        """Returns why a request cannot be answered in time, and when to retry; None if it can."""
        wait_s = self.wait_s(now)
        if self.waiting >= self.queue_requests:
            return "queue", wait_s
        # An idle device accepts it whatever the estimate: otherwise one slow batch would close the
        # server for ever, as no other batch could correct the estimate.
        if not self._queue and not self.running:
            return None
        batch_items = self._items % self.batch_items + ticket.items
        # A margin for batches slower than earlier ones: a request that is accepted and then late
        # delays all others.
        answer_s = SPARE * (wait_s + self.timing.seconds(batch_items))
        late_s = now + answer_s - ticket.deadline_s
        if late_s <= 0:
            return None
        return "deadline", late_s

    def add(self, ticket: T) -> None:
        self._queue.append(ticket)
        self._items += ticket.items

    def discard(self, ticket: T) -> bool:
        """Removes a request whose client disconnected; returns False if it is in a batch."""
        if ticket not in self._queue:
            return False
        self._queue.remove(ticket)
        self._items -= ticket.items
        return True

    def pop_where(self, condition: Callable[[T], bool]) -> list[T]:
        """Removes and returns the requests for which the condition holds."""
        tickets = list(filter(condition, self._queue))
        for ticket in tickets:
            self.discard(ticket)
        return tickets

    def pop_late(self, now: float) -> list[T]:
        """Removes and returns the requests that a batch starting now cannot answer in time."""
        # With more requests than a batch holds, a batch that is small for the sake of its most
        # urgent request makes all others late in turn, until none is in time. In that case the
        # urgent one is dropped, and the batch is full.
        is_crowded = self._items >= self.batch_items
        full_batch_s = self.timing.seconds(self.batch_items) if is_crowded else 0.0
        late: list[T] = []
        for ticket in self._queue:
            batch_s = full_batch_s or self.timing.seconds(ticket.items)
            if ticket.deadline_s < now + batch_s:
                late.append(ticket)
        # One stays: the estimate may be wrong, and only another batch can correct it.
        is_all = len(late) == len(self._queue)
        if late and is_all and late[-1].deadline_s > now:
            late.pop()
        for ticket in late:
            self.discard(ticket)
        return late

    def take(self, now: float) -> list[T]:
        """Removes the next batch from the front of the queue.

        It has as many requests as fit without making one of them late.
        """
        items = 0
        earliest_s = float("inf")
        count = 0
        for ticket in self._queue:
            items += ticket.items
            earliest_s = min(earliest_s, ticket.deadline_s)
            is_in_time = now + self.timing.seconds(items) <= earliest_s
            fits = items <= self.batch_items and is_in_time
            if count and not fits:
                break
            count += 1
        batch = self._queue[:count]
        self._queue = self._queue[count:]
        self._items -= _count_items(batch)
        return batch

    def begin(self, batch: list[T], now: float) -> None:
        self.running = len(batch)
        self.free_at_s = now + self.timing.seconds(_count_items(batch))

    def end(self) -> None:
        self.running = 0
        self.free_at_s = 0.0


def _count_items(batch: Sequence[Ticket]) -> int:
    return sum(ticket.items for ticket in batch)
