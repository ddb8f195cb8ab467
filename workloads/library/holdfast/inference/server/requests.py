"""A request in the queue of a model."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.inference.errors import Refused
from holdfast.inference.server.batcher import Ticket
from holdfast.inference.values import Value

Values = list[Value]


@dataclass(kw_only=True, eq=False)
class Request(Ticket):
    bodies: Sequence[bytes]
    digest: str
    """The digest of its items, as `rejections.digest_items` makes it."""
    tries: int = 0
    """The same as `Deadline.tries`."""
    suspected_s: float = 0.0
    """The time at which a predicting process ended with it."""
    answer: "asyncio.Future[Values]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Its values, or else Refused, or ItemFault if the model raises an exception for it."""

    @property
    def is_open(self) -> bool:
        """Says if a client waits for the answer."""
        return not self.answer.done()

    def resolve(self, values: Values) -> None:
        if self.is_open:
            self.answer.set_result(values)

    def fail(self, error: Exception) -> None:
        if self.is_open:
            self.answer.set_exception(error)

    def make_late(self, *, computing: bool = False) -> Refused:
        """Makes the error of a late request: 503 lets the proxy retry elsewhere, 504 does not.

        A request that was being computed on two servers gets 504, as it may be what hangs them.
        """
        may_retry = self.tries == 1 if computing else self.tries > 0
        return Refused(503 if may_retry else 504, "the answer misses the deadline", reason="late")
