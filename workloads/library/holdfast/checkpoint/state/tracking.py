"""Resume data at the same sample: `data = track(loader)`, with `data` as an entry of the state.

The consumed samples count, not those that workers have read ahead. An order that a sampler draws
from a random stream is drawn again from the stream as it was. The samples before the position are
skipped without being read.
"""

import multiprocessing
import os
import random
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from holdfast.checkpoint.state import Stateful
from holdfast.checkpoint.state.random_streams import Generators, Packed, pack_streams, set_streams
from holdfast.support.errors import InputError


def track(source: Any, *, ahead: int = 0) -> Any:
    """Wrap `source` so that its position is part of the checkpoint.

    Give the result to the state, and iterate over it or call it. A DataLoader, a sampler or another
    iterable that restarts with each iteration resumes behind the batches that were yielded. A
    function that draws a batch from the random streams resumes behind the results that were used:
    `ahead` of them are not yet used when tick() is called, as in a loop that prefetches.

    Raises InputError for anything else. An object with a state_dict() of its own keeps its
    position, and is an entry of the state without this.

        batches = track(DataLoader(dataset, batch_size=32, shuffle=True))
        state = {"model": model, "optimizer": optimizer, "batches": batches}
        with Checkpointer("gs://bucket/runs", state, run="run-7") as ckpt:
            for step, batch in enumerate(batches, ckpt.step + 1):
                train_step(batch)
                ckpt.tick(step)
    """
    if isinstance(source, TrackedIterable | TrackedDraw):
        return source
    if isinstance(source, Stateful):
        raise InputError(
            "data that keeps its own place cannot be tracked",
            got=type(source).__name__,
            allowed=(
                "a DataLoader of torch, another iterable without state_dict(), or a function that"
                " draws a batch"
            ),
            fix="give the object itself to the state",
        )
    if isinstance(source, DataLoader):
        is_stream = isinstance(source.dataset, IterableDataset)
        if source.batch_sampler is None or is_stream:
            return TrackedIterable(source)
        return TrackedLoader(source)
    if isinstance(source, Iterator):
        raise InputError(
            "an iterator cannot restart",
            got=type(source).__name__,
            allowed="the iterable behind it, or a function that draws a batch",
            fix="track(loader) instead of track(iter(loader)), or track(draw, ahead=1)",
        )
    if isinstance(source, Iterable):
        return TrackedIterable(source)
    if callable(source):
        return TrackedDraw(source, ahead)
    raise InputError(
        "this object cannot be tracked",
        got=type(source).__name__,
        allowed="a DataLoader, an iterable, or a function that draws a batch",
        fix="give an object of your own state_dict() and load_state_dict()",
    )


class TrackedIterable:
    """An iterable that is iterated again after a restart, with the random streams of its start.

    The items that were consumed are dropped.
    """

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = source
        self.epoch = 0
        """Number of finished passes."""
        self._done = 0
        self._start_streams = pack_streams()
        self._resumed = False

    def __len__(self) -> int:
        return len(self._source)  # pyright: ignore[reportArgumentType]

    def __iter__(self) -> Iterator[Any]:
        iterator = self._resume() if self._resumed else self._new_epoch()
        self._resumed = False
        for item in iterator:
            self._done += 1
            yield item
        # Only here: a loop that ends by `break` is still within its epoch, and resumes there.
        self.epoch += 1
        self._done = 0

    def _new_epoch(self) -> Iterator[Any]:
        self._done = 0
        self._start_streams = pack_streams()
        return iter(self._source)

    def _resume(self) -> Iterator[Any]:
        present = pack_streams()
        set_streams(self._start_streams)
        iterator = iter(self._source)
        # Consumed, because a plain iterable has no start position.
        deque(islice(iterator, self._done), maxlen=0)
        set_streams(present)
        return iterator

    def state_dict(self) -> dict[str, Any]:
        # Values and no tensors: values are stored per rank, and ranks are at different samples.
        return {
            "epoch": self.epoch,
            "batch": self._done,
            "streams": self._start_streams,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self._done = state["batch"]
        self._start_streams = state["streams"]
        self._resumed = self._done > 0


class TrackedLoader(TrackedIterable):
    """A DataLoader over a map-style dataset.

    The random draws of a worker depend on the batch alone, not on the worker or the time: they are
    the same after a restart, with any number of workers.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._order = _BatchOrder(loader)
        self._seed = torch.initial_seed()
        self._source = DataLoader(
            _SeededByBatch(loader.dataset),
            # The sampler stays in this process, so that its order is drawn from streams that a
            # checkpoint holds.
            batch_sampler=self._order,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=Shielded(loader.worker_init_fn),
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        )

    def _new_epoch(self) -> Iterator[Any]:
        self._done = 0
        self._order.begin(
            0,
            None,
            f"{self._seed}/{self.epoch}",
            self.epoch,
        )
        return iter(self._source)

    def _resume(self) -> Iterator[Any]:
        self._order.begin(
            self._done,
            self._start_streams,
            f"{self._seed}/{self.epoch}",
            self.epoch,
        )
        # A new iterator draws a seed, which the interrupted run had drawn long before.
        present = pack_streams()
        iterator = iter(self._source)
        set_streams(present)
        return iterator

    def state_dict(self) -> dict[str, Any]:
        self._start_streams = self._order.start_streams
        return super().state_dict() | {
            "seed": str(self._seed),
            "own": self._order.generators.packed(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._seed = int(state["seed"])
        self._order.start_streams = self._start_streams
        # Between epochs the next one draws from the generators as they are; within an epoch its
        # order is drawn from them again.
        self._order.generators.set(state["own"])


class TrackedDraw:
    """A function that draws from the random streams, and depends on nothing else that changes."""

    def __init__(self, draw: Callable[..., Any], ahead: int) -> None:
        self._draw = draw
        self._unused: deque[Packed] = deque(maxlen=ahead)
        """Streams before each draw whose result is not yet used."""
        self._replay: list[Packed] = []
        """Streams of the draws that a resumed run has to repeat."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if not self._replay:
            self._unused.append(pack_streams())
            return self._draw(*arguments, **options)
        # Drawn with the earlier streams, then the present ones are set again: the loop's own draws
        # do not change.
        present = pack_streams()
        earlier = self._replay.pop(0)
        self._unused.append(earlier)
        set_streams(earlier)
        batch = self._draw(*arguments, **options)
        set_streams(present)
        return batch

    def state_dict(self) -> dict[str, Any]:
        # With the draws that a resumed run has not repeated yet.
        return {"before": [*self._unused, *self._replay]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._replay = list(state["before"])
        self._unused.clear()


class _BatchOrder:
    """A batch sampler whose order can be drawn again, from a position in its middle."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._batch_sampler: Any = loader.batch_sampler
        self._sampler: Any = getattr(self._batch_sampler, "sampler", None)
        generators: dict[int, torch.Generator] = {}
        for owner in (loader, self._batch_sampler, self._sampler):
            generator = getattr(owner, "generator", None)
            if generator is not None:
                generators[id(generator)] = generator
        self.generators = Generators(generators.values())
        """Generators that the loader was given."""
        self.start_streams: Packed = self._get_streams()
        """Random streams from which the present order is drawn."""
        self.begin(
            0,
            None,
            "",
            0,
        )

    def begin(
        self,
        skip: int,
        streams: Packed,
        seed: str,
        epoch: int,
    ) -> None:
        """Prepare the next iteration, which skips batches and draws from `streams` if not None."""
        self._skip = skip
        self._replay = streams
        self._seed = seed
        for sampler in (self._sampler, self._batch_sampler):
            set_epoch = getattr(sampler, "set_epoch", None)
            if set_epoch:
                set_epoch(epoch)

    def _get_streams(self) -> Packed:
        return pack_streams() | {"own": self.generators.packed()}

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def __iter__(self) -> Iterator["_Batch"]:
        if self._replay is None:
            self.start_streams = self._get_streams()
            batches = self._number_batches()
        else:
            batches = self._replay_batches(self._replay)
            self._replay = None
        for number, indexes in batches:
            yield _Batch(indexes, f"{self._seed}/{number}")

    def _number_batches(self) -> Iterator[tuple[int, list[int]]]:
        return enumerate(iter(self._batch_sampler))

    def _replay_batches(self, streams: Packed) -> Iterator[tuple[int, list[int]]]:
        present = pack_streams()
        set_streams(streams)
        self.generators.set(streams["own"])
        self.start_streams = self._get_streams()
        batches = self._number_batches()
        # The order is drawn with the first index, so that one is taken before the present streams
        # are set again.
        first = list(islice(batches, self._skip, self._skip + 1))
        set_streams(present)
        return chain(first, batches)


class _Batch(list[int]):
    """Indexes, and the seed for random draws of their samples. Sent to workers."""

    def __init__(self, indexes: Iterable[int] = (), seed: str = "") -> None:
        super().__init__(indexes)
        self.seed = seed


class _SeededByBatch(torch.utils.data.Dataset[Any]):
    """A dataset that seeds the random streams of a worker before each batch."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, batch: _Batch) -> list[Any]:
        # In the trainer's own process the streams of the checkpoint stay in use.
        if get_worker_info() is not None:
            _seed_streams(batch.seed)
        get_items = getattr(self._dataset, "__getitems__", None)
        if get_items:
            return get_items(list(batch))
        return [self._dataset[index] for index in batch]


def _seed_streams(seed: str) -> None:
    stream = random.Random(seed)
    torch.manual_seed(stream.getrandbits(63))
    random.seed(stream.getrandbits(63))
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed(stream.getrandbits(32))


class Shielded:
    """A worker_init_fn for a DataLoader whose workers obey SIGTERM only if the trainer sends it.

    torchrun sends SIGTERM to the whole process group. If a worker dies of it, the trainer's next
    batch raises in the very step that the trainer still has to finish. This is a class, and not a
    closure, so that it can be pickled for spawned workers.
    """

    def __init__(self, then: Callable[[int], object] | None) -> None:
        self._worker_init_fn = then

    def __call__(self, worker: int) -> None:
        trainer = multiprocessing.parent_process()
        if trainer and trainer.pid:
            obey_only(trainer.pid)
        if self._worker_init_fn is not None:
            self._worker_init_fn(worker)


def obey_only(trainer: int) -> None:
    """Make this process end by SIGTERM from the process `trainer` only."""
    # SIGTERM is not ignored: when the trainer exits, multiprocessing ends the remaining workers by
    # SIGTERM, and then waits for them without a limit. It is blocked and not handled, because
    # Python code of a handler would run only after the batch.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(
        target=_exit_on_sigterm,
        args=(trainer,),
        name="shield",
        daemon=True,
    ).start()


def _exit_on_sigterm(trainer: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != trainer:
        pass
    os._exit(0)
