"""All ranks act on the outcome of one: a damaged shard, or an error that a user can fix."""

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.checkpoint.errors import Damaged, Denied, Transient
from holdfast.checkpoint.ranks import Ranks, agree_or_raise, outcome
from holdfast.runtime.stop import OneProcessStore
from holdfast.support.errors import InputError, Later
from workloads.library.tests.checkpoint.made import failing


def together(*calls: Callable[[], Any]) -> list[dict[str, Any] | InputError]:
    """Runs each rank in a thread over one store, and returns their decisions or errors."""
    store = OneProcessStore()

    def run_rank(number: int) -> dict[str, Any] | InputError:
        try:
            return agree_or_raise(
                Ranks(
                    store,
                    number,
                    len(calls),
                    timeout_s=30,
                ),
                outcome(calls[number]),
            )
        except InputError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run_rank, range(len(calls))))


sound = lambda: 7  # noqa: E731
damaged = failing(Damaged("shard 1 has other bytes"))


@pytest.mark.parametrize("victim", [0, 2])
def test_damage_on_one_rank_is_damage_on_every_rank(victim: int) -> None:
    calls = [sound, sound, sound]
    calls[victim] = damaged
    decisions = together(*calls)
    assert decisions == [{"damaged": f"rank {victim}: shard 1 has other bytes"}] * 3


def test_all_ranks_read_a_refusal_before_rank_0_ends() -> None:
    """The store may end with it."""
    store = OneProcessStore()
    have_read: list[bool] = []

    def run_rank(number: int) -> None:
        refusal = failing(InputError("x", got="y", allowed="z", fix="w"))
        with contextlib.suppress(InputError):
            agree_or_raise(Ranks(store, number, 2, timeout_s=30), outcome(refusal))
        if number == 0:
            have_read.append(store.check(["1/1/read"]))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run_rank, range(2)))
    assert have_read == [True]


@pytest.mark.parametrize(
    ("error", "kind"), [(Transient("503"), Later), (Denied("403"), InputError)]
)
def test_an_unreachable_store_is_an_error_on_every_rank_and_no_damage(
    error: Exception, kind: type[InputError]
) -> None:
    for calls in ((failing(error), damaged, sound), (sound, damaged, failing(error))):
        errors = together(*calls)
        assert len(errors) == 3
        for rank_error in errors:
            assert type(rank_error) is kind
        assert "checkpoint storage cannot be read" in str(errors[0])


def test_every_rank_continues_with_what_rank_0_read() -> None:
    assert together(lambda: [30, 20], lambda: [20], lambda: []) == [{"value": [30, 20]}] * 3
