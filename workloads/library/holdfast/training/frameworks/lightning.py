# pyright: basic, reportMissingImports=false
"""Lightning: `Trainer(..., enable_checkpointing=False,
callbacks=[HoldfastCallback("gs://bucket/runs", run="run-7")])`.

Resumes by itself; a notice on any rank stops all, where Lightning itself asks rank 0 alone.
Automatic optimization, one loader, DDP and one device.
"""

from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

from holdfast.training.frameworks.loaders import EpochOrder, shield_forked_workers
from holdfast.training.frameworks.managed_checkpointer import ManagedCheckpointer, refuse_deepspeed


class HoldfastCallback(Callback):
    def __init__(self, url: str, **options: Any) -> None:
        self._checkpoints = ManagedCheckpointer(url, **options)

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        refuse_deepspeed(type(trainer.strategy).__name__)
        # before the sanity check: its workers live on until the first validation
        shield_forked_workers()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        (loader,) = trainer.fit_loop._combined_loader.flattened
        self._order = EpochOrder(loader)
        # The order too: a shuffle that is drawn again in the middle of an epoch repeats samples.
        # infra/decisions/0032.
        kept = {
            "model": pl_module,
            "loops": trainer.fit_loop,
            "order": self._order,
        }
        kept |= {f"optimizer-{n}": optimizer for n, optimizer in enumerate(trainer.optimizers)}
        kept |= {
            f"scheduler-{n}": found.scheduler
            for n, found in enumerate(trainer.lr_scheduler_configs)
        }
        stream = torch.get_rng_state()
        if self._checkpoints.begin(kept):
            trainer.fit_loop.reset()  # again, now that it knows where it restarts
            stream = self._order.resume(trainer.fit_loop.epoch_loop.batch_progress.total.ready)
        # the workers that it has are neither shielded nor in the right place
        iter(trainer.fit_loop._data_fetcher)
        self._checkpoints.begin_at(stream)

    def on_train_batch_start(self, *_: Any) -> None:
        self._order.reached()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self._checkpoints.tick(trainer.global_step)

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        self._checkpoints.poll()

    def on_validation_end(self, *_: Any) -> None:
        self._checkpoints.evaluated()

    def on_train_end(self, *_: Any) -> None:
        self._checkpoints.end()
