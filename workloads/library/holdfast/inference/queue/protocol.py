"""The interface of queues, which lease items to workers. Every delivery has its own ack id.

One suite tests every implementation (workloads/library/tests/inference/queue/test_queues.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.inference.items import Item


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """One delivery, with an item, or with the fault of a message that is no item."""

    ack_id: str
    item: Item | None
    fault: str = ""
    digest: str = ""
    """The digest of a raw message that is no item."""


class Queue(Protocol):
    """Delivers at least once, in any order. Calls with an old ack id change nothing."""

    def publish(self, items: Sequence[Item]) -> None: ...

    def pull(self, limit: int, wait_s: float) -> list[Lease]:
        """Returns up to `limit` deliveries; waits at most `wait_s` for the first."""
        ...

    def extend(self, leases: Sequence[Lease], seconds: float) -> None:
        """Keeps these from other workers for `seconds` from now."""
        ...

    def ack(self, leases: Sequence[Lease]) -> None:
        """Removes these messages. Call it only after the results are committed."""
        ...

    def release(self, leases: Sequence[Lease], delay_s: float = 0.0) -> None:
        """Returns these messages to the queue, which delivers them again after `delay_s`."""
        ...
