"""Tests of the lease keeper, which extends leases until they are dropped."""

import threading
from collections.abc import Sequence

import psycopg
import pytest

from holdfast.inference.queue.protocol import Lease
from holdfast.inference.worker.lease_keeper import LeaseKeeper
from workloads.library.tests.processes import until

LEASE_S = 0.03
ALIVE_S = 30.0
"""The views of the database count a worker as killed that was silent for longer."""


class FakeQueue:
    """Records extensions, and fails the first two."""

    def __init__(self) -> None:
        self.extensions: list[list[str]] = []

    def extend(self, leases: Sequence[Lease], seconds: float) -> None:
        assert seconds == LEASE_S
        self.extensions.append([lease.ack_id for lease in leases])
        if len(self.extensions) <= 2:
            raise psycopg.OperationalError("connection lost")


def test_leases_are_extended_until_they_are_dropped() -> None:
    """Failed extensions are reported, and tried again."""
    queue = FakeQueue()
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
        until(lambda: len(queue.extensions) >= 5)
        leases = keeper.drop(["a"])
        assert [lease.ack_id for lease in leases] == ["1", "2"]
    finally:
        keeper.stop()
    assert queue.extensions[:5] == [["1", "2"]] * 5
    assert len(errors) == 2
    assert keeper.count() == 0


def test_a_worker_with_long_leases_is_not_taken_for_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    heartbeats: list[int] = []
    keeper = LeaseKeeper(
        FakeQueue(),
        lease_s=600.0,
        heartbeat=lambda: heartbeats.append(len(pauses)),
        on_error=lambda error: None,
    )  # type: ignore[arg-type]

    def wait(pause_s: float) -> bool:
        pauses.append(pause_s)
        return len(pauses) > 1

    monkeypatch.setattr(threading.Event, "wait", lambda _, pause_s: wait(pause_s))
    keeper.run()
    assert heartbeats == [1]
    assert pauses[0] <= ALIVE_S / 2
