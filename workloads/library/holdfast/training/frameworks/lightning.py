# pyright: basic, reportMissingImports=false
"""Lightning: `Trainer(..., enable_checkpointing=False,
callbacks=[HoldfastCallback("gs://bucket/runs", run="run-7")])`.

Resumes by itself. A notice on any rank stops all ranks; Lightning itself watches rank 0 only.
Supports automatic optimization with one loader, under DDP or on one device.
"""

from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

from holdfast.training.frameworks.loaders import EpochOrder, shield_forked_workers
from holdfast.training.frameworks.managed_checkpointer import ManagedCheckpointer, refuse_deepspeed


class HoldfastCallback(Callback):
    """Saves and resumes a Trainer. Takes the options of Checkpointer.

    The Trainer itself saves nothing.

        callback = HoldfastCallback("gs://bucket/runs", run="run-7", every="auto")
        trainer = Trainer(enable_checkpointing=False, callbacks=[callback])
        trainer.fit(module, loader)
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._checkpoints = ManagedCheckpointer(url, **options)

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
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
        self._checkpoints.tick(trainer.global_step)

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        self._checkpoints.poll()

    def on_validation_end(self, *_: Any) -> None:
        self._checkpoints.end_evaluation()

    def on_train_end(self, *_: Any) -> None:
        self._checkpoints.end()
