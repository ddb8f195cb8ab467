"""Makes the frameworks' loaders start at a given batch of the run, with workers that leave SIGTERM
to the trainer.
"""

# Why it is so: infra/decisions/0032.

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import torch

from holdfast.checkpoint.state.tracking import Shielded, obey_only


class Position:
    """Position in accelerate's loader. Epoch and batch follow from the number of batches alone; the
    shuffle of an epoch is seeded by its number.
    """

    def __init__(self, loader: Any, batches_done: int) -> None:
        self._loader = loader
        self._epoch, offset = divmod(batches_done, len(loader))
        # Making an iterator draws a seed from torch's random stream, which the run that was
        # interrupted in the middle of this epoch had drawn long before.
        self._stream = torch.get_rng_state() if offset else None
        loader.skip_batches = offset
        # The trainer and the loader both set the epoch, each from a count that started at 0.
        outer_sampler = getattr(loader, "batch_sampler", None)
        sampler = getattr(outer_sampler, "batch_sampler", None)
        self._override_epoch(loader)
        self._override_epoch(sampler)
        base_loader = getattr(loader, "base_dataloader", loader)
        base_loader.worker_init_fn = Shielded(base_loader.worker_init_fn)

    def count_epochs(self, batches_done: int) -> float:
        """Returns the number of epochs that these batches of the run make up."""
        epoch, offset = divmod(batches_done, len(self._loader))
        return epoch + offset / len(self._loader)

    def restore_stream(self) -> None:
        """Restores torch's stream after the first batch of a resumed epoch."""
        if self._stream is not None:
            torch.set_rng_state(self._stream)
            self._stream = None

    def end_epoch(self) -> None:
        self._epoch += 1
        self._loader.skip_batches = 0

    def _override_epoch(self, target: Any) -> None:
        if not hasattr(target, "set_epoch"):
            return
        original: Callable[[int], None] = target.set_epoch

        def set_epoch(_: int) -> None:
            original(self._epoch)

        target.set_epoch = set_epoch


class EpochOrder:
    """Sampler of a plain DataLoader that can draw the order of an epoch again after a restart.

    A shuffling sampler seeds itself from torch's stream when an epoch starts. A run that resumes
    within the epoch has a later stream, and would shuffle differently. So the stream at the draw is
    part of the checkpoint.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._sampler = loader.batch_sampler.sampler
        self._stream_at_draw = torch.get_rng_state()
        self._replay: _Replay | None = None
        loader.batch_sampler.sampler = self
        loader.worker_init_fn = Shielded(loader.worker_init_fn)

    def state_dict(self) -> dict[str, torch.Tensor]:
        # The stream before the draw, and neither a seed nor the order: infra/decisions/0032.
        return {"drawn_at": self._stream_at_draw.clone()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._stream_at_draw = state["drawn_at"].clone()

    def resume(self, batches_done: int) -> torch.Tensor:
        """Continues after `batches_done` batches of the run.

        Returns the stream that the run had when it read the next batch.
        """
        epoch, offset = divmod(batches_done, len(self._loader))
        # A DistributedSampler shuffles by the number of the epoch, and would start at 0 again.
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
        stream = torch.get_rng_state()
        if offset == 0:
            # A DataLoader draws its workers' seed before the order.
            torch.empty((), dtype=torch.int64).random_()
            self._stream_at_draw = torch.get_rng_state()
            next(iter(self._sampler), None)
            stream = torch.get_rng_state()
        self._replay = _Replay(
            stream_at_draw=self._stream_at_draw,
            skipped_samples=offset * self._loader.batch_size,
            stream_after=stream,
        )
        return stream

    def finish_replay(self) -> None:
        """Ends the replay once the first batch was read: later iterations are of later epochs."""
        if self._replay is not None and self._loader.num_workers:
            # A resumed trainer may have evaluated again while the workers ran.
            torch.set_rng_state(self._replay.stream_after)
        self._replay = None

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def __iter__(self) -> Iterator[int]:
        replay = self._replay
        if replay is None:
            self._stream_at_draw = torch.get_rng_state()
            yield from self._sampler
            return
        # A trainer may make several iterators before the first batch: each yields the same order,
        # and leaves the same stream.
        self._stream_at_draw = replay.stream_at_draw
        torch.set_rng_state(replay.stream_at_draw)
        order = islice(self._sampler, replay.skipped_samples, None)
        first = list(islice(order, 1))
        torch.set_rng_state(replay.stream_after)
        yield from first
        yield from order


@dataclass(frozen=True, kw_only=True, slots=True)
class _Replay:
    stream_at_draw: torch.Tensor
    skipped_samples: int
    stream_after: torch.Tensor
    """Stream that the run has after the draw."""


@cache
def shield_forked_workers() -> None:
    """Makes workers of loaders that are created later, for an evaluation, leave SIGTERM to the
    trainer too.
    """
    os.register_at_fork(after_in_child=_shield_worker)


def _shield_worker() -> None:
    obey_only(os.getppid())
