"""Tracked data: a run that is killed after any step resumes with the same samples and draws."""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from holdfast.checkpoint import track
from holdfast.checkpoint.format.validation import check_values
from holdfast.checkpoint.state import capture, decode
from holdfast.checkpoint.state.random_streams import set_rng_state
from holdfast.support.errors import InputError

ITEMS = 7
BATCH = 2
STEPS = 11


class Noisy(Dataset[torch.Tensor]):
    """A dataset with random augmentation from PyTorch's and Python's streams."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(1) / 10 + random.random() / 100


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(ITEMS):
            yield torch.rand(1)


def make_shuffled(**options: Any) -> Iterable[Any]:
    return track(
        DataLoader(
            Noisy(),
            batch_size=BATCH,
            shuffle=True,
            **options,
        )
    )


KINDS: dict[str, Callable[[], Iterable[Any]]] = {
    "shuffled": make_shuffled,
    "own generator": lambda: make_shuffled(
        generator=torch.Generator().manual_seed(9),
        drop_last=True,
    ),
    "stream": lambda: track(DataLoader(Stream(), batch_size=BATCH)),
    "sampler": lambda: track(RandomSampler(range(ITEMS))),
}


def repeat(data: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from data


def train(
    data: Iterable[Any],
    first: int,
    last: int,
) -> list[str]:
    """Return the batch of each step, and the random numbers that the step drew."""
    batches = repeat(data)
    steps: list[str] = []
    for _ in range(first, last):
        batch = next(batches)
        steps.append(f"{batch} {torch.rand(1).item()} {random.random()}")
    return steps


def save(data: Any) -> Callable[[Any], None]:
    """Capture `data` and the random streams. Returns a function that restores them.

    The restoring process has drawn other numbers before.
    """
    captured = capture({"data": data})
    check_values(captured.skeleton)
    tensors = {}
    for key, value in captured.tensors.items():
        tensors[key] = value.clone()

    def restore(new_data: Any) -> None:
        torch.manual_seed(123)
        random.seed(123)
        new_data.load_state_dict(decode(captured.skeleton["data"], tensors.__getitem__))
        set_rng_state(decode(captured.skeleton["__rng__"], tensors.__getitem__))

    return restore


Make = Callable[[], Iterable[Any]]


def check_resumes(
    make: Make,
    cuts: Iterable[int],
    make_resumed: Make | None = None,
) -> None:
    """Check that a run that is interrupted after each of `cuts` equals an uninterrupted one.

    `make_resumed` makes the data of the resumed run; by default it is made by `make` too.
    """

    def start() -> Iterable[Any]:
        torch.manual_seed(0)
        random.seed(0)
        return make()

    expected = train(start(), 0, STEPS)
    for cut in cuts:
        data = start()
        assert train(data, 0, cut) == expected[:cut]
        restore = save(data)
        resumed = make_resumed() if make_resumed else make()
        restore(resumed)
        assert train(resumed, cut, STEPS) == expected[cut:], f"resumed after {cut}"


@pytest.mark.parametrize("kind", KINDS)
def test_run_resumes_exactly_after_any_step(kind: str) -> None:
    check_resumes(KINDS[kind], range(1, STEPS))


@pytest.mark.process
def test_workers_that_read_ahead_and_draw_resume_exactly() -> None:
    """The cuts are inside an epoch and at its end. A run may resume with fewer workers."""
    check_resumes(
        lambda: make_shuffled(num_workers=2),
        (3, 4),
        lambda: make_shuffled(num_workers=1),
    )


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_batches_that_a_loop_has_prefetched_are_drawn_again(ahead: int) -> None:
    """Like nanoGPT, the loop draws the next batch during the present one, with dropout between."""

    def loop(
        draw: Callable[[], float],
        waiting: list[float],
        first: int,
        last: int,
    ) -> list[float]:
        numbers: list[float] = []
        for _ in range(first, last):
            while len(waiting) <= ahead:
                waiting.append(draw())
            numbers += [waiting.pop(0), torch.rand(1).item()]
            while len(waiting) < ahead:
                waiting.append(draw())
        return numbers

    def draw() -> float:
        return torch.rand(1).item()

    torch.manual_seed(0)
    expected = loop(
        draw,
        [],
        0,
        6,
    )
    for cut in range(1, 6):
        torch.manual_seed(0)
        data = track(draw, ahead=ahead)
        assert (
            loop(
                data,
                [],
                0,
                cut,
            )
            == expected[: 2 * cut]
        )
        restore = save(data)
        resumed = track(draw, ahead=ahead)
        restore(resumed)
        waiting = [resumed() for _ in range(ahead)]
        assert (
            loop(
                resumed,
                waiting,
                cut,
                6,
            )
            == expected[2 * cut :]
        )


def test_objects_that_cannot_restart_are_rejected_with_a_fix() -> None:
    with pytest.raises(InputError, match=r"track\(loader\) instead of track\(iter\(loader\)\)"):
        track(iter([1]))
    with pytest.raises(InputError, match="cannot be tracked"):
        track(3)
    with pytest.raises(InputError, match="keeps its own place"):
        track(torch.nn.Linear(1, 1))
    data = track([1])
    assert track(data) is data
