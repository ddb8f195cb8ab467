"""What one rank finds is what all ranks act on: a damaged shard on one of them, or an error that a user mends."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.checkpoint.errors import Damaged, Denied, Transient
from holdfast.checkpoint.ranks import Ranks, agreed, outcome
from holdfast.contract.errors import InputError, Later
from holdfast.runtime.stop import OneProcessStore


def together(calls: list[Callable[[], Any]]) -> list[dict[str, Any] | InputError]:
    """Each rank in a thread over one store: what it goes on with, or the error it raised."""
    store = OneProcessStore()

    def rank(number: int) -> dict[str, Any] | InputError:
        try:
            return agreed(Ranks(store, number, len(calls), timeout_s=30), outcome(calls[number]))
        except InputError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(rank, range(len(calls))))


def damaged() -> None:
    raise Damaged("shard 1 has other bytes")


def unreachable() -> None:
    raise Transient("503")


@pytest.mark.parametrize("victim", [0, 2])
def test_damage_on_one_rank_is_damage_on_every_rank(victim: int) -> None:
    calls = [damaged if rank == victim else (lambda: 7) for rank in range(3)]
    assert together(calls) == [{"damaged": f"rank {victim}: shard 1 has other bytes"}] * 3


@pytest.mark.parametrize("victim", [0, 2])
def test_a_store_that_is_away_is_an_error_on_every_rank_and_no_damage(victim: int) -> None:
    calls = [damaged if rank == 1 else unreachable if rank == victim else (lambda: 7) for rank in range(3)]
    for found in together(calls):
        assert isinstance(found, Later) and found.what == "checkpoint storage cannot be read"


def test_a_store_that_refuses_is_bad_input_on_every_rank() -> None:
    def refuses() -> None:
        raise Denied("403")

    assert [type(found) for found in together([refuses, lambda: 7])] == [InputError] * 2


def test_what_rank_0_read_is_what_every_rank_goes_on_with() -> None:
    assert together([lambda: [30, 20], lambda: [20], lambda: []]) == [{"value": [30, 20]}] * 3
