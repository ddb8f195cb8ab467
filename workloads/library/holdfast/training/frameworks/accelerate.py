# pyright: basic, reportMissingImports=false
"""Accelerate: a loop of your own over the objects that `accelerator.prepare` returned.

    with AccelerateCheckpointer(accelerator, "gs://bucket/runs", run="run-7") as ckpt:
        for epoch, batches in ckpt.epochs(loader, 3):
            for batch in batches:
                train_step(batch)
                ckpt.tick()

Restores models, optimizers, schedulers, the scaler and registered objects, continues at the next
batch, and exits with 143 after a preemption. Supports DDP and a single process, with one loader
whose dataset draws no random numbers itself.
"""

from collections.abc import Iterator
from typing import Any, Self

from holdfast.checkpoint.state.random_streams import Generators, pack_streams, set_streams
from holdfast.training.frameworks.loaders import Position
from holdfast.training.frameworks.managed_checkpointer import ManagedCheckpointer, refuse_deepspeed


class AccelerateCheckpointer:
    """Saves and resumes a loop over prepared objects. Takes the options of Checkpointer.

    The loader is one that was prepared.

        with AccelerateCheckpointer(accelerator, "gs://bucket/runs", run="run-7") as ckpt:
            for epoch, batches in ckpt.epochs(loader, 3):
                for batch in batches:
                    train_step(batch)
                    ckpt.tick()
    """

    def __init__(self, accelerator: Any, url: str, **options: Any) -> None:
        refuse_deepspeed(str(accelerator.distributed_type))
        self._accelerator = accelerator
        self._checkpoints = ManagedCheckpointer(url, **options)

    def __enter__(self) -> Self:
        accelerator = self._accelerator
        state: dict[str, Any] = {}
        for number, model in enumerate(accelerator._models):
            state[f"model-{number}"] = accelerator.unwrap_model(model)
        for number, wrapper in enumerate(accelerator._optimizers):
            state[f"optimizer-{number}"] = wrapper.optimizer
        for number, scheduler in enumerate(accelerator._schedulers):
            state[f"scheduler-{number}"] = scheduler
        for number, custom in enumerate(accelerator._custom_objects):
            state[f"custom-{number}"] = custom
        if accelerator.scaler is not None:
            state["scaler"] = accelerator.scaler
        generators = [loader.synchronized_generator for loader in accelerator._dataloaders]
        self._order = _ShuffleState(generators)
        state["order"] = self._order
        self.step = self._checkpoints.begin(state)
        return self

    def epochs(self, loader: Any, count: int) -> Iterator[tuple[int, Iterator[Any]]]:
        """Yields the number and the remaining batches of each epoch that is not finished."""
        first_epoch, batches_done = divmod(self.step, len(loader))
        position = Position(loader, self.step)
        self._order.is_mid_epoch = batches_done > 0
        for epoch in range(first_epoch, count):
            yield epoch, self._batches(loader, position)
            position.end_epoch()

    def _batches(self, loader: Any, position: Position) -> Iterator[Any]:
        streams = self._order.begin()
        for batch in loader:
            if streams is not None:
                set_streams(streams)
                streams = None
            position.restore_stream()
            yield batch

    def tick(self) -> None:
        """Reports that a batch is done. Called after each one, also without an optimizer step."""
        self.step += 1
        # A checkpoint does not contain gradients that are still being accumulated.
        if self._accelerator.sync_gradients:
            self._checkpoints.tick(self.step)

    def __exit__(self, *error: Any) -> None:
        self._checkpoints.end(*error)


class _ShuffleState:
    """Random streams from which an epoch's shuffle is drawn: torch's, and generators that
    accelerate synchronizes over all ranks.
    """

    def __init__(self, generators: list[Any]) -> None:
        self._generators = Generators(generators)
        self._epoch_start: Any = None
        """Streams at the start of the current epoch."""
        self.is_mid_epoch = False
        """True if the next epoch was started before the restart."""

    def begin(self) -> Any:
        """Starts an epoch.

        If it was started before, sets the streams back to its start, so that the shuffle is the
        same, and returns the streams to restore after the draw. Else returns None.
        """
        if not self.is_mid_epoch:
            self._epoch_start = pack_streams() | {"own": self._generators.packed()}
            return None
        self.is_mid_epoch = False
        streams = pack_streams()
        set_streams(self._epoch_start)
        self._generators.set(self._epoch_start["own"])
        return streams

    def state_dict(self) -> dict[str, Any]:
        return {
            "began": self._epoch_start,
            "own": self._generators.packed(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch_start = state["began"]
        self._generators.set(state["own"])
