# pyright: basic, reportMissingImports=false
"""Lightning: `Trainer(..., enable_checkpointing=False, callbacks=[HoldfastCallback("gs://bucket/runs", run="run-7")])`.

Resumes by itself; a notice on any rank stops all, where Lightning itself asks rank 0 alone. Automatic
optimization, DDP and one device.
"""

from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

from infra.contract.lifecycle import DEFAULT_WINDOW
from workloads.checkpoint import Checkpointer
from workloads.runtime import shutdown as notices
from workloads.training.frameworks.loaders import shield_forked_workers, skip_batches


class HoldfastCallback(Callback):
    def __init__(self, url: str, *, window_s: float = DEFAULT_WINDOW.pod_s, **options: Any) -> None:
        self._url, self._options, self._window_s = url, {"window_s": window_s, **options}, window_s

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        held = {"model": pl_module, "loops": trainer.fit_loop}
        held |= {f"optimizer-{n}": optimizer for n, optimizer in enumerate(trainer.optimizers)}
        held |= {f"scheduler-{n}": found.scheduler for n, found in enumerate(trainer.lr_scheduler_configs)}
        self._ckpt = Checkpointer(self._url, held, **self._options).__enter__()
        notices.of_process().take_signals()  # back from Lightning, whose handler would raise on this rank alone
        self._ckpt.stop.shutdown.leave_after(self._window_s)
        shield_forked_workers()
        if self._ckpt.step:
            trainer.fit_loop.reset()  # once more, now that it knows where it restarts
        stream, within = torch.get_rng_state(), 0
        for loader in trainer.fit_loop._combined_loader.flattened:
            epoch, within = divmod(self._ckpt.step, len(loader))
            skip_batches(loader, within, epoch=epoch)
        iter(trainer.fit_loop._data_fetcher)  # the workers that it has are neither shielded nor in the right place
        if within or not self._ckpt.step:  # an epoch that had begun had drawn its loader's seed before
            torch.set_rng_state(stream)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self._ckpt.tick(trainer.global_step)

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        self._ckpt.poll() if hasattr(self, "_ckpt") else None  # not in the sanity check

    def on_train_end(self, *_: Any) -> None:
        self._ckpt.__exit__(None, None, None)
