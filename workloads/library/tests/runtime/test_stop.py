import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.runtime.shutdown import Shutdown
from holdfast.runtime.stop import OneProcessStore, StopAgreement, stop_agreement


class SharedStore(OneProcessStore):
    """TCPStore's promise for threads of one process: `add` is atomic."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def add(self, key: str, amount: int, /) -> int:
        with self._lock:
            return super().add(key, amount)


class BrokenStore(OneProcessStore):
    def check(self, keys: list[str], /) -> bool:
        raise RuntimeError("connection closed by peer")


def gang(
    store: OneProcessStore,
    size: int,
    *,
    living: int | None = None,
    patience_s: float = 4,
) -> list[StopAgreement]:
    """`living`: of that many ranks, if others are dead."""
    options: dict[str, Any] = {
        "world_size": size,
        "interval_s": 0.01,
        "patience_s": patience_s,
    }
    return [
        StopAgreement(
            store,
            rank=rank,
            shutdown=Shutdown(),
            **options,
        )
        for rank in range(living or size)
    ]


def run_together(
    agreements: list[StopAgreement], steps: int, on_step: Callable[[int, int], None]
) -> list[int]:
    """Each rank in a thread; a barrier plays the gradient's collective. Returns where each rank
    ended.
    """
    barrier = threading.Barrier(len(agreements), timeout=60)

    def rank(index: int) -> int:
        for step in range(steps):
            on_step(index, step)
            barrier.wait()
            if agreements[index].should_stop(step + 1):
                return step + 1
        return steps

    with ThreadPoolExecutor(len(agreements)) as pool:
        ended = list(pool.map(rank, range(len(agreements))))
    for agreement in agreements:
        agreement.close()
    return ended


@pytest.mark.parametrize(
    "noticed",
    [
        set(),
        {0},
        {2},
        {1, 3},
        {0, 1, 2, 3},
    ],
)
def test_a_notice_on_any_rank_stops_all_at_one_boundary(noticed: set[int]) -> None:
    agreements = gang(SharedStore(), 4)
    seen = threading.Event()

    def on_step(rank: int, step: int) -> None:
        if rank in noticed and step == 5:
            agreements[rank].shutdown.request("SIGTERM")
            seen.set()
        if step > 5 and noticed:
            assert seen.wait(60)

    ended = run_together(agreements, 1_000_000 if noticed else 50, on_step)
    assert len(set(ended)) == 1 and ended[0] >= 6
    assert {a.agreed and a.requested for a in agreements} == {bool(noticed)}
    assert noticed != {2} or agreements[0].reason == "SIGTERM on rank 2"


def test_a_rank_that_has_finished_does_not_hold_up_the_others() -> None:
    first, second = gang(SharedStore(), 2, patience_s=60)
    assert not first.should_stop(10)
    first.close()
    second.shutdown.request("SIGTERM")
    assert not second.should_stop(10), "the other rank is through this boundary, so this one is too"
    second.close()


def test_a_dead_peer_costs_the_patience_and_the_agreement() -> None:
    (alive,) = gang(SharedStore(), 2, living=1, patience_s=0.2)
    alive.shutdown.request("SIGTERM")
    step = 0
    while not alive.should_stop(step := step + 1):
        pass
    assert not alive.agreed


def test_a_lost_store_leaves_the_own_notice() -> None:
    (agreement,) = gang(BrokenStore(), 2, living=1)
    agreement._watcher.join(60)
    assert not agreement.should_stop(1)
    agreement.shutdown.request("SIGTERM")
    assert agreement.should_stop(2) and not agreement.agreed


def test_polling_within_a_step_is_a_boundary_of_its_own() -> None:
    agreement = stop_agreement(None, 0, 1, shutdown=Shutdown())
    assert not agreement.should_stop(3)
    agreement.shutdown.request("SIGTERM")
    while not agreement.should_stop(3):
        pass
    assert agreement.agreed
    agreement.close()
