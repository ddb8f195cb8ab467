"""A queue: deliver, keep, take back. Every delivery has an ack id of its own.

One suite tests every implementation (workloads/library/tests/inference/queue/test_queues.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.inference.items import Item


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """One delivery. Either `item`, or `fault` is why the message is no item."""

    ack_id: str
    item: Item | None
    fault: str = ""
    digest: str = ""
    """Of the raw message, where it is no item."""


class Queue(Protocol):
    """At least once, in any order. An ack, extension or release with an old ack id changes nothing."""

    def publish(self, items: Sequence[Item]) -> None: ...

    def pull(self, limit: int, wait_s: float) -> list[Lease]:
        """Up to `limit` deliveries; waits at most `wait_s` for the first."""
        ...

    def extend(self, leases: Sequence[Lease], seconds: float) -> None:
        """No other worker gets these for `seconds` from now."""
        ...

    def ack(self, leases: Sequence[Lease]) -> None:
        """Done with these. Only after the results are committed."""
        ...

    def release(self, leases: Sequence[Lease], delay_s: float = 0.0) -> None:
        """Not done with these: deliver them again, after `delay_s`."""
        ...
