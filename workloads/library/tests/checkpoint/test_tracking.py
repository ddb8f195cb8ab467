"""Data whose place is state: killed after any step, a run goes on with the very samples and draws
of a quiet one.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from holdfast.checkpoint import track
from holdfast.checkpoint.format.soundness import check_values
from holdfast.checkpoint.state import capture, decode
from holdfast.checkpoint.state.random_streams import set_rng_state
from holdfast.support.errors import InputError

ITEMS = 7
BATCH = 2
STEPS = 11


class Noisy(Dataset[torch.Tensor]):
    """Augmented at random, from every stream there is."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(1) / 10 + random.random() / 100


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.rand(1) for _ in range(ITEMS))


def shuffled(**options: Any) -> Iterable[Any]:
    return track(
        DataLoader(
            Noisy(),
            batch_size=BATCH,
            shuffle=True,
            **options,
        )
    )


KINDS: dict[str, Callable[[], Iterable[Any]]] = {
    "shuffled": shuffled,
    "own generator": lambda: shuffled(generator=torch.Generator().manual_seed(9), drop_last=True),
    "stream": lambda: track(DataLoader(Stream(), batch_size=BATCH)),
    "sampler": lambda: track(RandomSampler(range(ITEMS))),
}


def forever(data: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from data


def trained(data: Iterable[Any], first: int, last: int) -> list[str]:
    """What each step saw, and what it drew itself."""
    batches = forever(data)
    return [f"{next(batches)} {torch.rand(1).item()} {random.random()}" for _ in range(first, last)]


def kept(data: Any) -> Callable[[Any], None]:
    """Checkpoint of `data` and of the streams, as restored into a new one in a process that has
    drawn otherwise.
    """
    captured = capture({"data": data})
    check_values(captured.skeleton)
    tensors = {key: value.clone() for key, value in captured.tensors.items()}

    def restore(fresh: Any) -> None:
        torch.manual_seed(123)
        random.seed(123)
        fresh.load_state_dict(decode(captured.skeleton["data"], tensors.__getitem__))
        set_rng_state(decode(captured.skeleton["__rng__"], tensors.__getitem__))

    return restore


Make = Callable[[], Iterable[Any]]


def goes_on(make: Make, cuts: Iterable[int], resumed: Make | None = None) -> None:
    """Interrupted after each of `cuts`, and taken up by new data of `resumed`, it is as a quiet
    run.
    """

    def begun() -> Iterable[Any]:
        torch.manual_seed(0)
        random.seed(0)
        return make()

    whole = trained(begun(), 0, STEPS)
    for cut in cuts:
        data = begun()
        assert trained(data, 0, cut) == whole[:cut]
        restore = kept(data)
        restore(fresh := (resumed or make)())
        assert trained(fresh, cut, STEPS) == whole[cut:], f"resumed after {cut}"


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_after_any_step_it_goes_on_as_if_nothing_had_been(kind: str) -> None:
    goes_on(KINDS[kind], range(1, STEPS))


@pytest.mark.process
def test_with_workers_that_read_ahead_and_draw_at_random() -> None:
    """Inside an epoch and at its end; fewer workers afterwards, which a run's machines may force."""
    goes_on(lambda: shuffled(num_workers=2), (3, 4), lambda: shuffled(num_workers=1))


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_batches_that_a_loop_has_drawn_ahead_are_drawn_again(ahead: int) -> None:
    """As nanoGPT does: the next batch is drawn while the present one is computed, dropout in
    between.
    """

    def loop(
        draw: Callable[[], float],
        waiting: list[float],
        first: int,
        last: int,
    ) -> list[float]:
        seen: list[float] = []
        for _ in range(first, last):
            while len(waiting) <= ahead:
                waiting.append(draw())
            seen += [waiting.pop(0), torch.rand(1).item()]
            while len(waiting) < ahead:
                waiting.append(draw())
        return seen

    def draw() -> float:
        return torch.rand(1).item()

    torch.manual_seed(0)
    whole = loop(draw, [], 0, 6)
    for cut in range(1, 6):
        torch.manual_seed(0)
        data = track(draw, ahead=ahead)
        assert loop(data, [], 0, cut) == whole[: 2 * cut]
        restore = kept(data)
        restore(fresh := track(draw, ahead=ahead))
        assert loop(fresh, [fresh() for _ in range(ahead)], cut, 6) == whole[2 * cut :]


def test_what_cannot_be_begun_anew_is_refused_with_the_line_that_can() -> None:
    with pytest.raises(InputError, match=r"track\(loader\) instead of track\(iter\(loader\)\)"):
        track(iter([1]))
    with pytest.raises(InputError, match="cannot be tracked"):
        track(3)
    with pytest.raises(InputError, match="keeps its own place"):
        track(torch.nn.Linear(1, 1))
    assert track(data := track([1])) is data
