"""Loaders of the frameworks, set to begin at a batch of the run, with workers that leave SIGTERM to
the trainer.
"""

# Why it is so: infra/decisions/0032.

import os
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import Any

import torch

from holdfast.checkpoint.state.tracking import Shielded, obey_only


class Position:
    """accelerate's loader. Epoch and batch follow from a count alone; the shuffle of an epoch is
    seeded by its number.
    """

    def __init__(self, loader: Any, batch: int) -> None:
        self._loader = loader
        self._epoch, within = divmod(batch, len(loader))
        # Making an iterator draws a seed from torch's random stream, which the run that was
        # interrupted in the middle of this epoch had drawn long before.
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


class EpochOrder:
    """The sampler of a plain DataLoader, whose order of an epoch can be drawn again after a
    restart.

    A shuffling sampler seeds itself from torch's stream when an epoch begins; a run that resumes in
    its middle has a later stream, and would shuffle again. So the stream at the draw is state of
    the checkpoint.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._sampler = loader.batch_sampler.sampler
        self._drawn_at = torch.get_rng_state()
        self._replay: tuple[torch.Tensor, int, torch.Tensor] | None = None
        loader.batch_sampler.sampler = self
        loader.worker_init_fn = Shielded(loader.worker_init_fn)

    def state_dict(self) -> dict[str, torch.Tensor]:
        # The stream before the draw, and neither a seed nor the order: infra/decisions/0032.
        return {"drawn_at": self._drawn_at.clone()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._drawn_at = state["drawn_at"].clone()

    def resume(self, batch: int) -> torch.Tensor:
        """Go on at `batch` of the run; the stream that the run had when that batch was read."""
        epoch, within = divmod(batch, len(self._loader))
        # A DistributedSampler shuffles by the number of the epoch, and would begin at 0 again.
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
        stream = torch.get_rng_state()
        if not within:
            # as DataLoader draws its workers' seed, before the order
            torch.empty((), dtype=torch.int64).random_()
            self._drawn_at = torch.get_rng_state()
            list(islice(iter(self._sampler), 1))
            stream = torch.get_rng_state()
        self._replay = (self._drawn_at, within * self._loader.batch_size, stream)
        return stream

    def reached(self) -> None:
        """The first batch is there: iterations from now on are those of later epochs."""
        if self._replay is not None and self._loader.num_workers:
            # a resumed trainer may have evaluated again, behind the workers
            torch.set_rng_state(self._replay[2])
        self._replay = None

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def __iter__(self) -> Iterator[int]:
        if self._replay is None:
            self._drawn_at = torch.get_rng_state()
            yield from self._sampler
            return
        # A trainer may make an iterator more than once before the first batch: each gives the same
        # order, and leaves the same stream behind.
        self._drawn_at, skipped, stream = self._replay
        torch.set_rng_state(self._drawn_at)
        order = iter(self._sampler)
        first = list(islice(order, skipped, skipped + 1))
        torch.set_rng_state(stream)
        yield from first
        yield from order


@cache
def shield_forked_workers() -> None:
    """Workers of loaders that are made later, for an evaluation, leave SIGTERM to the trainer too."""
    os.register_at_fork(after_in_child=lambda: obey_only(os.getppid()))
