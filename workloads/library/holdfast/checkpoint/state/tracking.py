"""Data that a resumed run goes on with at the same sample: `data = track(loader)`, and `data` is an
entry of the state.

What was consumed counts, and not what workers have read ahead. An order that a sampler draws from a
random stream is drawn again from the stream as it was, and what comes before the place is skipped
without being read.
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
from holdfast.checkpoint.state.random_streams import Generators, Packed, packed_streams, set_streams
from holdfast.support.errors import InputError


def track(source: Any, *, ahead: int = 0) -> Any:
    """`source`, whose place belongs to the checkpoint: give the result to the state, and iterate
    over it or call it.

    A DataLoader, a sampler or another iterable that begins again each time: resumes behind the
    batches that were yielded. A function that draws a batch from the random streams: `ahead` of its
    results are not yet used when tick() is called, as in a loop that prefetches. Raises InputError
    for anything else; what keeps its place by a state_dict() of its own is an entry of the state
    without this.
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
        plain = source.batch_sampler is not None and not isinstance(source.dataset, IterableDataset)
        return TrackedLoader(source) if plain else TrackedIterable(source)
    if isinstance(source, Iterator):
        raise InputError(
            "an iterator cannot restart",
            got=type(source).__name__,
            allowed="what an iterator is made of, or a function that draws a batch",
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
    """Any iterable: after a restart it is begun with the streams that it began with, and what was
    consumed is dropped.
    """

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = source
        self.epoch = 0
        """Passes that were finished."""
        self._done = 0
        self._began = packed_streams()
        self._resumed = False

    def __len__(self) -> int:
        return len(self._source)  # pyright: ignore[reportArgumentType]

    def __iter__(self) -> Iterator[Any]:
        iterator = self._resume() if self._resumed else self._new_epoch()
        self._resumed = False
        for item in iterator:
            self._done += 1
            yield item
        # Only here: a loop that leaves by `break` is still within its epoch, and resumes there.
        self.epoch = self.epoch + 1
        self._done = 0

    def _new_epoch(self) -> Iterator[Any]:
        self._done = 0
        self._began = packed_streams()
        return iter(self._source)

    def _resume(self) -> Iterator[Any]:
        now = packed_streams()
        set_streams(self._began)
        iterator = iter(self._source)
        # consumed: a plain iterable has no start position
        deque(islice(iterator, self._done), maxlen=0)
        set_streams(now)
        return iterator

    def state_dict(self) -> dict[str, Any]:
        # Values and no tensors: these are kept for each rank, and ranks are at different samples.
        return {
            "epoch": self.epoch,
            "batch": self._done,
            "streams": self._began,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self._done = state["batch"]
        self._began = state["streams"]
        self._resumed = self._done > 0


class TrackedLoader(TrackedIterable):
    """A DataLoader over a map-style dataset. What workers draw at random depends on the batch
    alone, and not on which worker reads it or when: so it is the same after a restart, with any
    number of workers.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._order = _Order(loader)
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
        self._order.begin(0, None, f"{self._seed}/{self.epoch}", self.epoch)
        return iter(self._source)

    def _resume(self) -> Iterator[Any]:
        self._order.begin(self._done, self._began, f"{self._seed}/{self.epoch}", self.epoch)
        # To make an iterator draws a seed, which the interrupted run had drawn long before.
        now = packed_streams()
        iterator = iter(self._source)
        set_streams(now)
        return iterator

    def state_dict(self) -> dict[str, Any]:
        self._began = self._order.drawn_at
        return super().state_dict() | {
            "seed": str(self._seed),
            "own": self._order.generators.packed(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._seed = int(state["seed"])
        self._order.drawn_at = self._began
        # Between epochs the next one draws from where the generators are; within one they are drawn
        # from again.
        self._order.generators.set(state["own"])


class TrackedDraw:
    """A function that draws from the random streams and from nothing else that changes."""

    def __init__(self, draw: Callable[..., Any], ahead: int) -> None:
        self._draw = draw
        self._before: deque[Packed] = deque(maxlen=ahead)
        self._again: list[Packed] = []

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if not self._again:
            self._before.append(packed_streams())
            return self._draw(*arguments, **options)
        # Drawn with the streams of then, which are put back: the loop's own draws go on
        # undisturbed.
        now = packed_streams()
        before = self._again.pop(0)
        self._before.append(before)
        set_streams(before)
        found = self._draw(*arguments, **options)
        set_streams(now)
        return found

    def state_dict(self) -> dict[str, Any]:
        # Also those that a resumed run has not drawn again yet.
        return {"before": [*self._before, *self._again]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._again = list(state["before"])
        self._before.clear()


class _Order:
    """A batch sampler whose order can be drawn again, from a place in its middle."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._inner: Any = loader.batch_sampler
        sampler: Any = getattr(self._inner, "sampler", None)
        owners = (loader, self._inner, sampler)
        found = {
            id(one): one
            for owner in owners
            if (one := getattr(owner, "generator", None)) is not None
        }
        self.generators = Generators(found.values())
        """That the loader was given."""
        self._sampler = sampler
        self.drawn_at: Packed = self._streams()
        self.begin(0, None, "", 0)

    def begin(self, skip: int, drawn_at: Packed, seed: str, epoch: int) -> None:
        self._skip = skip
        self._replay = drawn_at
        self._seed = seed
        for one in (self._sampler, self._inner):
            set_epoch = getattr(one, "set_epoch", None)
            if set_epoch:
                set_epoch(epoch)

    def _streams(self) -> Packed:
        return packed_streams() | {"own": self.generators.packed()}

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator["_Batch"]:
        now = None
        if self._replay is not None:
            now = packed_streams()
            set_streams(self._replay)
            self.generators.set(self._replay["own"])
            self._replay = None
        self.drawn_at = self._streams()
        numbered = enumerate(iter(self._inner))
        # The draw comes with the first index: taken while the streams are where they were.
        kept = list(islice(numbered, self._skip, self._skip + 1)) if now is not None else []
        if now is not None:
            set_streams(now)
        for number, indexes in chain(kept, numbered):
            yield _Batch(indexes, f"{self._seed}/{number}")


class _Batch(list[int]):
    """Indexes, and what random draws of their samples begin from. Sent to workers."""

    def __init__(self, indexes: Iterable[int] = (), seed: str = "") -> None:
        super().__init__(indexes)
        self.seed = seed


class _SeededByBatch(torch.utils.data.Dataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, batch: _Batch) -> list[Any]:
        # In the trainer's own process the streams of the checkpoint go on.
        if get_worker_info() is not None:
            _seed_all(batch.seed)
        every = getattr(self._dataset, "__getitems__", None)
        if every:
            return every(list(batch))
        return [self._dataset[index] for index in batch]


def _seed_all(seed: str) -> None:
    stream = random.Random(seed)
    torch.manual_seed(stream.getrandbits(63))
    random.seed(stream.getrandbits(63))
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed(stream.getrandbits(32))


class Shielded:
    """The start of a DataLoader worker that leaves SIGTERM to the trainer. A class, so that spawned
    workers can have it.

    torchrun sends SIGTERM to the whole process group. A worker that dies of it makes the trainer's
    next batch raise, in the very step that was to be finished.
    """

    def __init__(self, then: Callable[[int], object] | None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        trainer = multiprocessing.parent_process()
        if trainer and trainer.pid:
            obey_only(trainer.pid)
        if self._then is not None:
            self._then(worker)


def obey_only(trainer: int) -> None:
    """This process ends by SIGTERM from `trainer` only."""
    # Never ignored: multiprocessing ends what is left of an epoch by SIGTERM when the trainer
    # exits, and then waits for it without end. Blocked and not handled: Python code of a handler
    # would run only after the batch.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(
        target=_wait_for,
        args=(trainer,),
        name="shield",
        daemon=True,
    ).start()


def _wait_for(trainer: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != trainer:
        pass
    os._exit(0)
