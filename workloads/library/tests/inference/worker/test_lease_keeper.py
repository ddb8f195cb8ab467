"""Leases are extended for as long as an item is in hand, and not a moment longer."""

import threading
from collections.abc import Sequence

import psycopg

from holdfast.inference.queue.protocol import Lease
from holdfast.inference.worker.lease_keeper import LeaseKeeper

LEASE_S = 0.03


class Extended:
    """As much of a queue as the keeper asks for."""

    def __init__(self, faults: int = 0) -> None:
        self.asked: list[list[str]] = []
        self.enough = threading.Semaphore(0)
        self._faults = faults

    def extend(self, leases: Sequence[Lease], seconds: float) -> None:
        assert seconds == LEASE_S
        self.asked.append([lease.ack_id for lease in leases])
        self.enough.release()
        if self._faults:
            self._faults -= 1
            raise psycopg.OperationalError("connection lost")


def kept(queue: Extended, errors: list[Exception]) -> LeaseKeeper:
    return LeaseKeeper(queue, lease_s=LEASE_S, heartbeat=lambda: None, on_error=errors.append)  # type: ignore[arg-type]


def lease(name: str) -> Lease:
    return Lease(ack_id=name, item=None)


def test_what_is_in_hand_is_extended_again_and_again_until_it_is_dropped() -> None:
    queue = Extended()
    keeper = kept(queue, [])
    keeper.add("a", lease("1"))
    keeper.add("a", lease("2"))
    keeper.start()
    try:
        for _ in range(3):
            assert queue.enough.acquire(timeout=30)
        assert [each.ack_id for each in keeper.drop(["a"])] == ["1", "2"]
    finally:
        keeper.stop()
    assert queue.asked[:3] == [["1", "2"]] * 3
    assert keeper.count() == 0


def test_an_extension_that_fails_is_reported_and_the_next_one_is_made() -> None:
    queue, errors = Extended(faults=2), list[Exception]()
    keeper = kept(queue, errors)
    keeper.add("a", lease("1"))
    keeper.start()
    try:
        for _ in range(4):
            assert queue.enough.acquire(timeout=30)
    finally:
        keeper.stop()
    assert len(errors) == 2
