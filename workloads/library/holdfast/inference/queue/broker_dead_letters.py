"""Items that the broker alone gave up: delivered too often, by evictions, and never judged by us.

They lie on the subscription of the dead-letter topic, unchanged, among dead letters of ours and items of other jobs.
"""

from collections.abc import Callable, Sequence

from holdfast.inference.queue.protocol import Lease
from holdfast.inference.queue.pubsub import PubSubQueue

_PULL_ITEMS = 100
_EMPTY_S = 3.0
_HOLD_S = 600.0


def recover(dead: PubSubQueue, job: str, revive: Callable[[Sequence[str]], object]) -> list[str]:
    """The job's items on `dead`; acked once `revive` has put them into the outbox, and all others left there."""
    others: list[Lease] = []
    found: list[str] = []
    try:
        while leases := dead.pull_of_any_job(_PULL_ITEMS, _EMPTY_S):
            mine = [lease for lease in leases if lease.item is not None and lease.item.job == job]
            names = sorted({lease.item.id for lease in mine if lease.item})
            if names:
                revive(names)
                dead.ack(mine)
                found += names
            others += [lease for lease in leases if lease not in mine]
            # Or the next pull would deliver the same ones again.
            dead.extend(others, _HOLD_S)
    finally:
        dead.release(others)
    return found
