"""Leases are extended for as long as an item is in hand, and not a moment longer."""

from collections.abc import Sequence

import psycopg

from holdfast.inference.queue.protocol import Lease
from holdfast.inference.worker.lease_keeper import LeaseKeeper
from workloads.library.tests.processes import until

LEASE_S = 0.03


class Extended:
    """As much of a queue as the keeper needs; its first two answers are errors."""

    def __init__(self) -> None:
        self.extended: list[list[str]] = []

    def extend(self, leases: Sequence[Lease], seconds: float) -> None:
        assert seconds == LEASE_S
        self.extended.append([lease.ack_id for lease in leases])
        if len(self.extended) <= 2:
            raise psycopg.OperationalError("connection lost")


def test_what_is_in_hand_is_extended_again_and_again_until_it_is_dropped() -> None:
    """Also after extensions that fail, which are reported."""
    queue = Extended()
    errors = list[Exception]()
    keeper = LeaseKeeper(
        queue,
        lease_s=LEASE_S,
        heartbeat=lambda: None,
        on_error=errors.append,
    )  # type: ignore[arg-type]
    for name in ("1", "2"):
        keeper.add("a", Lease(ack_id=name, item=None))
    keeper.start()
    try:
        until(lambda: len(queue.extended) >= 5)
        assert [each.ack_id for each in keeper.drop(["a"])] == ["1", "2"]
    finally:
        keeper.stop()
    assert queue.extended[:5] == [["1", "2"]] * 5
    assert len(errors) == 2
    assert keeper.count() == 0
