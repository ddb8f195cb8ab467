"""The queue of one model: which requests are accepted, wait, and go into the next batch. Pure: no
clock, no I/O.

Guarantees: a request leaves the queue once, in a batch, as late or as discarded; a batch holds at
most `batch_items` and is taken in the order of arrival; a request that cannot be answered by its
deadline is refused on arrival, when refusing costs least, and else dropped before the device would
work for nothing.
"""

# Why it is so: infra/decisions/0048.

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from holdfast.inference.predictor.batch_time import BatchTime

SPARE = 1.2


@dataclass(kw_only=True, eq=False)
class Ticket:
    """One request; its items are predicted in one batch, by one model. Times are the caller's
    monotonic seconds.
    """

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
    """When the batch in progress is expected to end."""
    running: int = 0
    """Requests of the batch in progress."""
    _queue: list[T] = field(default_factory=list[T])
    _items: int = 0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def wait_s(self, now: float) -> float:
        """How long a request that came now would wait for its batch to begin."""
        full = self._items // self.batch_items
        return max(0.0, self.free_at_s - now) + full * self.timing.seconds(self.batch_items)

    def refusal(self, ticket: Ticket, now: float) -> tuple[str, float] | None:
        """Why it cannot be answered in time, and when to come back; None when it may be added."""
        wait_s = self.wait_s(now)
        if self.waiting >= self.queue_requests:
            return "queue", wait_s
        queued = self._items % self.batch_items
        # Spare for a batch that takes longer than those before: a request that is accepted and then
        # late costs all others.
        answer_s = SPARE * (wait_s + self.timing.seconds(queued + ticket.items))
        late_s = now + answer_s - ticket.deadline_s
        # An idle device takes it whatever the estimate: otherwise one slow batch would close the
        # server for ever, as no other batch could correct it.
        idle = not self._queue and not self.running
        return None if late_s <= 0 or idle else ("deadline", late_s)

    def add(self, ticket: T) -> None:
        self._queue.append(ticket)
        self._items += ticket.items

    def discard(self, ticket: T) -> bool:
        """Remove a request whose client has disconnected; false when it is already in a batch."""
        if ticket not in self._queue:
            return False
        self._queue.remove(ticket)
        self._items -= ticket.items
        return True

    def late(self, now: float) -> list[T]:
        """Remove and return those that a batch begun now cannot answer in time."""
        # With more waiting than a batch holds, a batch made small for its most urgent request makes
        # all others late in their turn, until none is in time: then the urgent one is given up, and
        # the batch is full.
        crowded = self._items >= self.batch_items
        least_s = self.timing.seconds(self.batch_items) if crowded else 0.0
        hopeless = []
        for t in self._queue:
            if t.deadline_s < now + (least_s or self.timing.seconds(t.items)):
                hopeless.append(t)
        if len(hopeless) == len(self._queue) and hopeless and hopeless[-1].deadline_s > now:
            hopeless.pop()  # the estimate may be wrong, and only another batch can show it
        for ticket in hopeless:
            self.discard(ticket)
        return hopeless

    def take(self, now: float) -> list[T]:
        """The next batch, from the front of the queue: as many as fit and as do not make one of
        them late.
        """
        items = 0
        earliest = float("inf")
        count = 0
        for ticket in self._queue:
            items += ticket.items
            earliest = min(earliest, ticket.deadline_s)
            fits = items <= self.batch_items and now + self.timing.seconds(items) <= earliest
            if count and not fits:
                break
            count += 1
        batch = self._queue[:count]
        self._queue = self._queue[count:]
        self._items -= sum(ticket.items for ticket in batch)
        return batch

    def begin(self, batch: list[T], now: float) -> None:
        self.running = len(batch)
        self.free_at_s = now + self.timing.seconds(sum(ticket.items for ticket in batch))

    def end(self) -> None:
        self.running = 0
        self.free_at_s = 0.0
