# pyright: basic, reportMissingImports=false
"""Hugging Face Trainer: `Trainer(..., callbacks=[HoldfastCallback("gs://bucket/runs",
run="run-7")])`.

Resumes by itself, at the batch that comes next; exits with 143 when preempted. DDP and one process.
"""

from typing import Any

from transformers import TrainerCallback

from holdfast.support.errors import InputError
from holdfast.training.frameworks.loaders import Position
from holdfast.training.frameworks.managed_checkpointer import ManagedCheckpointer, refuse_deepspeed


class HoldfastCallback(TrainerCallback):
    def __init__(self, url: str, **options: Any) -> None:
        self._checkpoints = ManagedCheckpointer(url, **options)

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Raises InputError where the Trainer would save as well."""
        refuse_deepspeed(f"deepspeed={args.deepspeed}" if args.deepspeed else "")
        if args.enable_jit_checkpoint or args.save_strategy != "no":
            raise InputError(
                "both the Trainer and Holdfast would write checkpoints",
                got=(
                    f"enable_jit_checkpoint={args.enable_jit_checkpoint},"
                    f" save_strategy={args.save_strategy}"
                ),
                allowed='enable_jit_checkpoint=False and save_strategy="no"',
                fix="leave saving to HoldfastCallback",
            )

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        # out of accelerate's wrapper
        optimizer = getattr(parts["optimizer"], "optimizer", parts["optimizer"])
        kept = {
            "model": parts["model"],
            "optimizer": optimizer,
            "scheduler": parts["lr_scheduler"],
        }
        state.global_step = self._checkpoints.begin(kept)
        # Batches and not steps: a loader knows nothing of accumulated gradients.
        self._position = Position(
            parts["train_dataloader"], state.global_step * args.gradient_accumulation_steps
        )

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._position.first_batch_drawn()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._position.epoch_over()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._checkpoints.tick(state.global_step)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._checkpoints.poll()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._checkpoints.evaluated()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._checkpoints.end()
