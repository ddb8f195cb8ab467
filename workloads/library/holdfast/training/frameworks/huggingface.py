# pyright: basic, reportMissingImports=false
"""Hugging Face Trainer: `Trainer(..., callbacks=[HoldfastCallback("gs://bucket/runs",
run="run-7")])`.

Resumes by itself at the next batch and exits with 143 after a preemption. Supports DDP and a single
process.
"""

from typing import Any

from transformers import TrainerCallback

from holdfast.support.errors import InputError
from holdfast.training.frameworks.loaders import Position
from holdfast.training.frameworks.managed_checkpointer import ManagedCheckpointer, refuse_deepspeed


class HoldfastCallback(TrainerCallback):
    """Saves and resumes a Trainer. Takes the options of Checkpointer.

    The Trainer itself saves nothing.

        callback = HoldfastCallback("gs://bucket/runs", run="run-7", every="auto")
        arguments = TrainingArguments(output_dir="out", save_strategy="no")
        Trainer(model, arguments, train_dataset=dataset, callbacks=[callback]).train()
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._checkpoints = ManagedCheckpointer(url, **options)

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Raises InputError if the Trainer would save checkpoints too."""
        refuse_deepspeed(f"deepspeed={args.deepspeed}" if args.deepspeed else "")
        jit_checkpoint = args.enable_jit_checkpoint
        save_strategy = args.save_strategy
        if jit_checkpoint or save_strategy != "no":
            raise InputError(
                "both the Trainer and Holdfast would write checkpoints",
                got=f"enable_jit_checkpoint={jit_checkpoint}, save_strategy={save_strategy}",
                allowed='enable_jit_checkpoint=False and save_strategy="no"',
                fix="leave saving to HoldfastCallback",
            )

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        wrapper = parts["optimizer"]
        optimizer = getattr(wrapper, "optimizer", wrapper)  # accelerate wraps it
        checkpoint_state = {
            "model": parts["model"],
            "optimizer": optimizer,
            "scheduler": parts["lr_scheduler"],
        }
        step = self._checkpoints.begin(checkpoint_state)
        state.global_step = step
        # Batches and not steps: a loader knows nothing of accumulated gradients.
        batches_done = step * args.gradient_accumulation_steps
        self._position = Position(parts["train_dataloader"], batches_done)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._position.restore_stream()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._position.end_epoch()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._checkpoints.tick(state.global_step)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._checkpoints.poll()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._checkpoints.end_evaluation()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._checkpoints.end()
