import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.runtime.shutdown import Shutdown
from holdfast.runtime.stop import OneProcessStore, StopAgreement, stop_agreement


class SharedStore(OneProcessStore):
    """A store for threads of one process with an atomic `add`, like TCPStore."""

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
    patience_s: float = 60,
) -> list[StopAgreement]:
    """Starts the agreements of `size` ranks, or of the first `living` ones if the rest is dead."""
    options: dict[str, Any] = {
        "world_size": size,
        "interval_s": 0.01,
        "patience_s": patience_s,
    }
    agreements: list[StopAgreement] = []
    for rank in range(living or size):
        agreements.append(StopAgreement(store, rank=rank, shutdown=Shutdown(), **options))
    return agreements


def run_together(
    agreements: list[StopAgreement],
    steps: int,
    on_step: Callable[[int, int], None],
) -> list[int]:
    """Runs each rank in a thread and returns its last step. A barrier stands for the collective."""
    barrier = threading.Barrier(len(agreements), timeout=60)

    def rank(index: int) -> int:
        for step in range(steps):
            on_step(index, step)
            barrier.wait()
            if agreements[index].should_stop(step + 1):
                return step + 1
        return steps

    with ThreadPoolExecutor(len(agreements)) as pool:
        last_steps = list(pool.map(rank, range(len(agreements))))
    for agreement in agreements:
        agreement.close()
    return last_steps


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
    is_requested = threading.Event()

    def on_step(rank: int, step: int) -> None:
        if rank in noticed and step == 5:
            agreements[rank].shutdown.request("SIGTERM")
            is_requested.set()
        if step > 5 and noticed:
            assert is_requested.wait(60)

    steps = 1_000_000 if noticed else 50
    last_steps = run_together(agreements, steps, on_step)
    assert len(set(last_steps)) == 1
    assert last_steps[0] >= 6
    for agreement in agreements:
        assert (agreement.agreed and agreement.requested) == bool(noticed)
    if noticed == {2}:
        assert agreements[0].reason == "SIGTERM on rank 2"


def test_a_finished_rank_does_not_delay_others() -> None:
    first, second = gang(SharedStore(), 2, patience_s=60)
    assert not first.should_stop(10)
    first.close()
    second.shutdown.request("SIGTERM")
    assert not second.should_stop(10), "the other rank has passed this boundary"
    second.close()


def test_a_dead_peer_ends_the_agreement_after_the_patience() -> None:
    (alive,) = gang(SharedStore(), 2, living=1, patience_s=0.2)
    alive.shutdown.request("SIGTERM")
    step = 1
    while not alive.should_stop(step):
        step += 1
    assert not alive.agreed


def test_without_a_store_each_rank_follows_its_own_notice() -> None:
    (agreement,) = gang(BrokenStore(), 2, living=1)
    agreement._watcher.join(60)
    assert not agreement.should_stop(1)
    agreement.shutdown.request("SIGTERM")
    assert agreement.should_stop(2)
    assert not agreement.agreed


def test_each_check_within_a_step_is_a_boundary() -> None:
    agreement = stop_agreement(None, 0, 1, shutdown=Shutdown())
    assert not agreement.should_stop(3)
    agreement.shutdown.request("SIGTERM")
    while not agreement.should_stop(3):
        pass
    assert agreement.agreed
    agreement.close()


def test_a_single_process_stops_at_its_next_boundary() -> None:
    for _ in range(50):
        agreement = stop_agreement(None, 0, 1, shutdown=Shutdown())
        assert not agreement.should_stop(1)
        agreement.shutdown.request("SIGTERM")
        assert agreement.should_stop(2)
        assert agreement.agreed
