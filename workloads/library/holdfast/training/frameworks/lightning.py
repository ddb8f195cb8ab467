# pyright: basic, reportMissingImports=false
"""Lightning: `Trainer(..., enable_checkpointing=False,
callbacks=[HoldfastCallback("gs://bucket/runs", run="run-7")])`.

Resumes by itself. A notice on any rank stops all ranks; Lightning itself watches rank 0 only.
Supports automatic optimization with one loader, under DDP or on one device.
"""

from typing import Any

import torch
from lightning.fabric.utilities.apply_func import convert_tensors_to_scalars
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger

from holdfast.training.curves.curve import Curve
from holdfast.training.frameworks.loaders import EpochOrder, shield_forked_workers
from holdfast.training.frameworks.managed_checkpointer import ManagedCheckpointer, refuse_deepspeed


class HoldfastCallback(Callback):
    """Saves and resumes a Trainer. Takes the options of Checkpointer.

    The Trainer itself saves nothing.

        callback = HoldfastCallback("gs://bucket/runs", run="run-7", every="auto")
        trainer = Trainer(enable_checkpointing=False, callbacks=[callback])
        trainer.fit(module, loader)

    `curve` gets what the module logs, each step once over any number of evictions. Then
    logger=False: Lightning's own loggers show steps again that are done again.
    """

    def __init__(self, url: str, *, curve: Curve | None = None, **options: Any) -> None:
        self._checkpoints = ManagedCheckpointer(url, **options)
        self._logger = CurveLogger(curve, self._checkpoints) if curve else None

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        if self._logger and self._logger not in trainer.loggers:
            trainer.loggers = [*trainer.loggers, self._logger]
        refuse_deepspeed(type(trainer.strategy).__name__)
        # Before the sanity check, whose workers live until the first validation.
        shield_forked_workers()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        (loader,) = trainer.fit_loop._combined_loader.flattened
        self._order = EpochOrder(loader)
        # The order too: a shuffle that is drawn again in the middle of an epoch repeats samples.
        # infra/decisions/0032.
        state = {
            "model": pl_module,
            "loops": trainer.fit_loop,
            "order": self._order,
        }
        for number, optimizer in enumerate(trainer.optimizers):
            state[f"optimizer-{number}"] = optimizer
        for number, config in enumerate(trainer.lr_scheduler_configs):
            state[f"scheduler-{number}"] = config.scheduler
        if self._logger:
            state["curve"] = self._logger.curve
        stream = torch.get_rng_state()
        if self._checkpoints.begin(state):
            trainer.fit_loop.reset()  # again, with the restored position
            batches_done = trainer.fit_loop.epoch_loop.batch_progress.total.ready
            stream = self._order.resume(batches_done)
        # Its present workers are neither shielded nor at the restored position.
        iter(trainer.fit_loop._data_fetcher)
        self._checkpoints.set_stream(stream)

    def on_train_batch_start(self, *_: Any) -> None:
        self._order.finish_replay()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if self._logger:
            self._logger.log_step(trainer)
        self._checkpoints.tick(trainer.global_step)

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        self._checkpoints.poll()

    def on_validation_end(self, *_: Any) -> None:
        self._checkpoints.end_evaluation()

    def on_train_end(self, *_: Any) -> None:
        self._checkpoints.end()


class CurveLogger(Logger):
    """Passes what a LightningModule logs to a curve, under the number of steps done.

    The trainer logs the values of a step once its callbacks have run, and with them the save. So
    the callback asks for them before its tick, and those that come again are dropped.
    """

    def __init__(self, curve: Curve, checkpoints: ManagedCheckpointer) -> None:
        super().__init__()
        self.curve = curve
        self._checkpoints = checkpoints

    @property
    def name(self) -> str:
        return "holdfast"

    @property
    def version(self) -> str:
        return self.curve.id

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        """Does nothing: a curve has numbers of steps only."""

    def log_step(self, trainer: Any) -> None:
        """Records what the trainer would log after this batch."""
        connector = trainer._logger_connector
        is_step_done = trainer.global_step > self._checkpoints.step
        if not is_step_done or not connector.should_update_logs:
            return
        values = dict(connector.metrics["log"])
        if not values:
            return
        values.setdefault("epoch", trainer.current_epoch)
        numbers = _find_numbers(values)
        self.curve.log(trainer.global_step, numbers)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Records values of an evaluation, of an epoch and of other callbacks.

        Values from before and after the training belong to no step of the curve.
        """
        if not self._checkpoints.is_open:
            return
        numbers = _find_numbers(metrics)
        self.curve.log_after_tick(numbers)


def _find_numbers(metrics: dict[str, Any]) -> dict[str, float]:
    numbers = convert_tensors_to_scalars(metrics)
    # Lightning's own loggers take the value of this name for the number of the step.
    numbers.pop("step", None)
    return numbers
