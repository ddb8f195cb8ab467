# pyright: basic, reportMissingImports=false
"""Hugging Face Trainer: `Trainer(..., callbacks=[HoldfastCallback("gs://bucket/runs",
run="run-7")])`.

Resumes by itself at the next batch and exits with 143 after a preemption. Supports DDP and a single
process.
"""

import inspect
from typing import Any

from transformers import Trainer, TrainerCallback

from holdfast.support.errors import InputError
from holdfast.training.curves.curve import Curve
from holdfast.training.frameworks.loaders import Position
from holdfast.training.frameworks.managed_checkpointer import ManagedCheckpointer, refuse_deepspeed


class HoldfastCallback(TrainerCallback):
    """Saves and resumes a Trainer. Takes the options of Checkpointer.

    The Trainer itself saves nothing.

        callback = HoldfastCallback("gs://bucket/runs", run="run-7", every="auto")
        arguments = TrainingArguments(output_dir="out", save_strategy="no")
        Trainer(model, arguments, train_dataset=dataset, callbacks=[callback]).train()

    `curve` gets what the Trainer logs, each step once over any number of evictions. Then
    report_to="none": the Trainer's own loggers show steps again that are done again.
    """

    def __init__(self, url: str, *, curve: Curve | None = None, **options: Any) -> None:
        self._checkpoints = ManagedCheckpointer(url, **options)
        self._curve = curve
        self._owes_tick = False
        """True between the end of a step and the log of its values."""
        self._is_resumed = False

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
        loss = _LoggedLoss(_find_trainer())
        checkpoint_state = {
            "model": parts["model"],
            "optimizer": optimizer,
            "scheduler": parts["lr_scheduler"],
            "logged_loss": loss,
        }
        if self._curve:
            checkpoint_state["curve"] = self._curve
        step = self._checkpoints.begin(checkpoint_state)
        state.global_step = step
        self._owes_tick = False
        self._is_resumed = step > 0
        loss.begin(step)
        # Batches and not steps: a loader knows nothing of accumulated gradients.
        batches_done = step * args.gradient_accumulation_steps
        self._position = Position(parts["train_dataloader"], batches_done)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._tick_if_owed(state)
        self._position.restore_stream()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._tick_if_owed(state)
        self._position.end_epoch()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._is_resumed:  # the Trainer counts the epochs of this start
            batches_done = state.global_step * args.gradient_accumulation_steps
            state.epoch = self._position.count_epochs(batches_done)
        self._owes_tick = True
        # What the Trainer logs next belongs to this step, and must be in its checkpoint.
        if not (self._curve and control.should_log):
            self._tick_if_owed(state)

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Any,
        **_: Any,
    ) -> None:
        # The summary at the end is of this start alone.
        if not self._curve or not self._checkpoints.is_open or "train_runtime" in logs:
            return
        values: dict[str, float] = {}
        for name, value in logs.items():
            if isinstance(value, int | float):
                values[name] = value
        if self._owes_tick:
            self._curve.log(state.global_step, values)
            self._tick_if_owed(state)
        else:
            self._curve.log_after_tick(values)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._tick_if_owed(state)
        self._checkpoints.poll()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._checkpoints.end_evaluation()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._tick_if_owed(state)
        self._checkpoints.end()

    def _tick_if_owed(self, state: Any) -> None:
        if self._owes_tick:
            self._owes_tick = False
            self._checkpoints.tick(state.global_step)


class _LoggedLoss:
    """The Trainer's sum of losses since it logged their mean, as an entry of the state.

    A Trainer that resumes by itself begins at step 0 with a sum of 0. It would divide the losses
    since its start by all steps of the run.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._sum: Any = getattr(trainer, "_tr_loss", None)
        """None: a release of transformers before 5 keeps it in a local variable."""
        self._is_restored = False

    def state_dict(self) -> dict[str, Any]:
        return {
            "sum": None if self._sum is None else float(self._sum),
            "logged_step": self._trainer._globalstep_last_logged,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._sum is None or state["sum"] is None:
            return
        self._sum.fill_(state["sum"])
        self._trainer._globalstep_last_logged = state["logged_step"]
        self._is_restored = True

    def begin(self, step: int) -> None:
        """Begins at `step`. Call it after the restore."""
        if not self._is_restored:  # then the first mean is over the steps of this start
            self._trainer._globalstep_last_logged = step
        # For the summary, which is of this start alone.
        self._trainer._initial_global_step = step
        if self._sum is not None:
            self._trainer._total_loss_scalar -= float(self._sum)


def _find_trainer() -> Any:
    """Returns the Trainer that calls this callback, and does not pass itself."""
    frame = inspect.currentframe()
    while frame:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer):
            return caller
        frame = frame.f_back
    raise InputError(
        "HoldfastCallback was called by no Trainer",
        got="a call of on_train_begin",
        allowed="Trainer(..., callbacks=[callback]).train()",
        fix="give the callback to a Trainer of transformers",
    )
