"""Checkpointer that the callbacks share; it keeps evaluations out of the training's random stream.

An evaluation draws the seed of its loader's workers. A run that resumes after it has not drawn that
seed, so the draw is undone: before a save within the evaluation, and when it ends.
"""

from typing import Any

import torch

from holdfast.checkpoint import Checkpointer
from holdfast.runtime import shutdown as notices
from holdfast.support.errors import InputError
from holdfast.training.frameworks.loaders import shield_forked_workers
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW


class ManagedCheckpointer:
    def __init__(self, url: str, *, window_s: float = DEFAULT_WINDOW.pod_s, **options: Any) -> None:
        self._url = url
        self._window_s = window_s
        self._options: dict[str, Any] = {
            "window_s": window_s,
            **options,
        }
        self._ckpt: Checkpointer | None = None
        self._stream = torch.get_rng_state()

    def begin(self, state: dict[str, Any]) -> int:
        """Restores the state and returns the number of steps done."""
        checkpointer = Checkpointer(self._url, state, **self._options)
        self._ckpt = checkpointer.__enter__()
        # The framework's own handler would raise on this rank alone.
        notices.of_process().take_signals()
        # A compile that never returns must not outlast the window.
        self._ckpt.stop.shutdown.leave_after(self._window_s)
        shield_forked_workers()
        self._stream = torch.get_rng_state()
        return self._ckpt.step

    @property
    def is_open(self) -> bool:
        """True during the training."""
        return self._ckpt is not None

    @property
    def step(self) -> int:
        """Number of steps done, as of the last tick; 0 before and after the training."""
        return self._ckpt.step if self._ckpt else 0

    def set_stream(self, stream: torch.Tensor) -> None:
        """Sets torch's stream for the first step."""
        self._stream = stream
        torch.set_rng_state(stream)

    def tick(self, step: int) -> None:
        """Reports that `step` steps are done, and saves or stops if due."""
        if not self._ckpt:
            return
        # Frameworks report each batch of an accumulated gradient under the number of the step
        # before.
        if step > self._ckpt.step:
            self._ckpt.tick(step)
        else:
            self._ckpt.poll()
        self._stream = torch.get_rng_state()

    def poll(self) -> None:
        """Saves or stops if due, after a batch of an evaluation.

        Does nothing in an evaluation before or after the training.
        """
        if not self._ckpt:
            return
        # A save here is resumed after the evaluation: infra/decisions/0032.
        evaluation_stream = torch.get_rng_state()
        torch.set_rng_state(self._stream)
        self._ckpt.poll()
        torch.set_rng_state(evaluation_stream)

    def wait_until_staged(self) -> None:
        """Waits until the optimizer may change the state, before each of its steps."""
        if self._ckpt:
            with self._ckpt.lock():
                pass

    def end_evaluation(self) -> None:
        if self._ckpt:
            torch.set_rng_state(self._stream)

    def end(self, *error: Any) -> None:
        """Closes the checkpointer. `error` is the arguments of `__exit__`, if it ended with one."""
        if not self._ckpt:
            return
        self._ckpt.__exit__(*error or (None, None, None))
        self._ckpt = None


def refuse_deepspeed(strategy: object) -> None:
    """Raises InputError if `strategy`, of any framework, is DeepSpeed's."""
    name = str(strategy)
    if "deepspeed" not in name.lower():
        return
    raise InputError(
        "DeepSpeed partitions parameters and optimizer state itself, so they would be saved as"
        " per-rank state",
        got=name[:200],
        allowed="DDP, or FSDP2 (torch.distributed.fsdp.fully_shard), which shards the same state",
        fix="train with FSDP2, or keep DeepSpeed's own save_checkpoint()",
    )
