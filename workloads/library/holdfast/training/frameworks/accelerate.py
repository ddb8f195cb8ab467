# pyright: basic, reportMissingImports=false
"""Accelerate: your own loop over what `accelerator.prepare` gave.

    with AccelerateCheckpointer(accelerator, "gs://bucket/runs", run="run-7") as ckpt:
        for epoch, batches in ckpt.epochs(loader, 3):
            for batch in batches:
                train_step(batch)
                ckpt.tick()

Takes up models, optimizers, schedulers, the scaler and registered objects; begins at the batch that
comes next, and exits with 143 when preempted. DDP and one process; one loader, whose dataset draws
nothing at random by itself.
"""

from collections.abc import Iterator
from typing import Any, Self

from holdfast.checkpoint.state.random_streams import Generators, packed_streams, set_streams
from holdfast.training.frameworks.loaders import Position
from holdfast.training.frameworks.managed_checkpointer import ManagedCheckpointer, refuse_deepspeed


class AccelerateCheckpointer:
    def __init__(self, accelerator: Any, url: str, **options: Any) -> None:
        refuse_deepspeed(str(accelerator.distributed_type))
        self._accelerator = accelerator
        self._checkpoints = ManagedCheckpointer(url, **options)

    def __enter__(self) -> Self:
        found = self._accelerator
        kept = {f"model-{n}": found.unwrap_model(model) for n, model in enumerate(found._models)}
        kept |= {f"optimizer-{n}": wrapped.optimizer for n, wrapped in enumerate(found._optimizers)}
        kept |= {f"scheduler-{n}": wrapped for n, wrapped in enumerate(found._schedulers)}
        kept |= {f"custom-{n}": custom for n, custom in enumerate(found._custom_objects)}
        kept |= {"scaler": found.scaler} if found.scaler is not None else {}
        self._order = _Order([loader.synchronized_generator for loader in found._dataloaders])
        kept |= {"order": self._order}
        self.step = self._checkpoints.begin(kept)
        return self

    def epochs(self, loader: Any, count: int) -> Iterator[tuple[int, Iterator[Any]]]:
        """Number and batches of each epoch that is not over."""
        position = Position(loader, self.step)
        self._order.within = self.step % len(loader) > 0
        for epoch in range(self.step // len(loader), count):
            yield epoch, self._batches(loader, position)
            position.epoch_over()

    def _batches(self, loader: Any, position: Position) -> Iterator[Any]:
        now = self._order.begin()
        for batch in loader:
            if now is not None:
                set_streams(now)
                now = None
            position.first_batch_drawn()
            yield batch

    def tick(self) -> None:
        """After each batch, whether the optimizer stepped in it or not."""
        self.step += 1
        # Gradients that are still being summed up are in no checkpoint.
        if self._accelerator.sync_gradients:
            self._checkpoints.tick(self.step)

    def __exit__(self, *error: Any) -> None:
        self._checkpoints.end(*error)


class _Order:
    """What an epoch's shuffle is drawn from: a generator that accelerate keeps for all ranks, or
    torch's stream.
    """

    def __init__(self, generators: list[Any]) -> None:
        self._own = Generators(generators)
        self._began: Any = None
        self.within = False
        """Whether the epoch that comes was begun before."""

    def begin(self) -> Any:
        """Where the streams were, if they were taken back to the beginning of an epoch that goes
        on.
        """
        if not self.within:
            self._began = packed_streams() | {"own": self._own.packed()}
            return None
        self.within = False
        now = packed_streams()
        set_streams(self._began)
        self._own.set(self._began["own"])
        return now

    def state_dict(self) -> dict[str, Any]:
        return {
            "began": self._began,
            "own": self._own.packed(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._began = state["began"]
        self._own.set(state["own"])
