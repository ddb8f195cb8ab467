# pyright: basic, reportMissingImports=false
"""Lightning: `Trainer(..., enable_checkpointing=False, callbacks=[HoldfastCallback("gs://bucket/runs", run="run-7")])`.

Resumes by itself; a notice on any rank stops all, where Lightning itself asks rank 0 alone. Automatic
optimization, DDP and one device.
"""

from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

from holdfast.training.frameworks.loaders import shield_forked_workers, skip_batches
from holdfast.training.frameworks.managed_checkpointer import ManagedCheckpointer


class HoldfastCallback(Callback):
    def __init__(self, url: str, **options: Any) -> None:
        self._checkpoints = ManagedCheckpointer(url, **options)

    def setup(self, *_: Any, **__: Any) -> None:
        shield_forked_workers()  # before the sanity check: its workers live on until the first validation

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        kept = {"model": pl_module, "loops": trainer.fit_loop}
        kept |= {f"optimizer-{n}": optimizer for n, optimizer in enumerate(trainer.optimizers)}
        kept |= {f"scheduler-{n}": found.scheduler for n, found in enumerate(trainer.lr_scheduler_configs)}
        step = self._checkpoints.begin(kept)
        if step:
            trainer.fit_loop.reset()  # once more, now that it knows where it restarts
        stream, within = torch.get_rng_state(), 0
        for loader in trainer.fit_loop._combined_loader.flattened:
            epoch, within = divmod(step, len(loader))
            skip_batches(loader, within, epoch=epoch)
        iter(trainer.fit_loop._data_fetcher)  # the workers that it has are neither shielded nor in the right place
        if within or not step:  # an epoch that had begun had drawn its loader's seed before
            torch.set_rng_state(stream)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self._checkpoints.tick(trainer.global_step)

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        self._checkpoints.poll()

    def on_validation_end(self, *_: Any) -> None:
        self._checkpoints.evaluated()

    def on_train_end(self, *_: Any) -> None:
        self._checkpoints.end()
