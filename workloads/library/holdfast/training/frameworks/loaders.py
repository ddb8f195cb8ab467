"""Loaders of the frameworks, set to begin at a batch of the run, with workers that leave SIGTERM to the trainer."""

# Why it is so: infra/decisions/0033.

import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import Any

import torch


class Position:
    """accelerate's loader. Epoch and batch follow from a count alone; the shuffle of an epoch is seeded by its number."""

    def __init__(self, loader: Any, batch: int) -> None:
        self._loader = loader
        self._epoch, within = divmod(batch, len(loader))
        # Making an iterator draws a seed from torch's random stream, which the run that was interrupted in
        # the middle of this epoch had drawn long before.
        self._stream = torch.get_rng_state() if within else None
        loader.skip_batches = within
        # The trainer and the loader both set the epoch, each from a count that began at 0.
        inner: Any = getattr(getattr(loader, "batch_sampler", None), "batch_sampler", None)
        for target in filter(lambda part: hasattr(part, "set_epoch"), (loader, inner)):
            target.set_epoch = self._with_our_epoch(target.set_epoch)
        source = getattr(loader, "base_dataloader", loader)
        source.worker_init_fn = Shielded(source.worker_init_fn)

    def first_batch_drawn(self) -> None:
        if self._stream is not None:
            torch.set_rng_state(self._stream)
            self._stream = None

    def epoch_over(self) -> None:
        self._epoch += 1
        self._loader.skip_batches = 0

    def _with_our_epoch(self, set_epoch: Callable[[int], None]) -> Callable[[int], None]:
        return lambda _: set_epoch(self._epoch)


def skip_batches(loader: Any, count: int, *, epoch: int) -> None:
    """A plain DataLoader whose next iteration leaves out the first `count` batches of that epoch."""
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)
    loader.batch_sampler.sampler = _SkippingSampler(loader.batch_sampler.sampler, count * loader.batch_size)
    loader.worker_init_fn = Shielded(loader.worker_init_fn)


class _SkippingSampler:
    """A sampler whose first iteration begins at a sample; its indices are drawn, the data is not read."""

    def __init__(self, sampler: Any, first: int) -> None:
        self._sampler, self._first = sampler, first

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def __iter__(self) -> Iterator[int]:
        first, self._first = self._first, 0
        return islice(iter(self._sampler), first, None)


@cache
def shield_forked_workers() -> None:
    """Workers of loaders that are made later, for an evaluation, leave SIGTERM to the trainer too.

    Blocked, not ignored: a loader's worker installs a handler of its own after the fork.
    """
    os.register_at_fork(after_in_child=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}))


class Shielded:
    """A worker's start that makes it leave SIGTERM to the trainer; a class, so that spawned workers can have it."""

    def __init__(self, then: Callable[[int], object] | None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self._then is not None:
            self._then(worker)
