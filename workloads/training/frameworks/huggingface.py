# pyright: basic, reportMissingImports=false
"""Hugging Face Trainer: `Trainer(..., callbacks=[HoldfastCallback("gs://bucket/runs", run="run-7")])`.

Resumes by itself, at the batch that comes next; exits with 143 when preempted. DDP and one process.
"""

from typing import Any

from transformers import TrainerCallback

from infra.contract.errors import InputError
from infra.contract.lifecycle import DEFAULT_WINDOW
from workloads.checkpoint import Checkpointer
from workloads.training.frameworks.loaders import Position, shield_forked_workers


class HoldfastCallback(TrainerCallback):
    def __init__(self, url: str, *, window_s: float = DEFAULT_WINDOW.pod_s, **options: Any) -> None:
        self._url, self._options, self._window_s = url, {"window_s": window_s, **options}, window_s

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.enable_jit_checkpoint or args.save_strategy != "no":
            raise InputError(
                "two parties would write checkpoints",
                got=f"enable_jit_checkpoint={args.enable_jit_checkpoint}, save_strategy={args.save_strategy}",
                allowed='enable_jit_checkpoint=False and save_strategy="no"',
                fix="leave saving to HoldfastCallback",
            )

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        optimizer = getattr(parts["optimizer"], "optimizer", parts["optimizer"])  # out of accelerate's wrapper
        held = {"model": parts["model"], "optimizer": optimizer, "scheduler": parts["lr_scheduler"]}
        self._ckpt = Checkpointer(self._url, held, **self._options).__enter__()
        self._ckpt.stop.shutdown.leave_after(self._window_s)  # also out of a compile that never ends
        shield_forked_workers()
        state.global_step = self._ckpt.step
        self._position = Position(parts["train_dataloader"], self._ckpt.step * args.gradient_accumulation_steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._position.first_batch_drawn()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._position.epoch_over()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._ckpt.tick(state.global_step)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._ckpt.poll()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._ckpt.__exit__(None, None, None)
