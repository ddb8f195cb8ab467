"""What the callbacks share: one training's checkpointer, and keep evaluations out of its random
stream.

An evaluation draws the seed of its loader's workers. A run that resumes behind it has not drawn, so
the draw is undone: before anything is saved inside the evaluation, and when it is over.
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
        self._options: dict[str, Any] = {"window_s": window_s, **options}
        self._ckpt: Checkpointer | None = None
        self._stream = torch.get_rng_state()

    def begin(self, state: dict[str, Any]) -> int:
        """Restore; the number of steps done."""
        self._ckpt = Checkpointer(self._url, state, **self._options).__enter__()
        # back from a framework whose handler would raise on this rank alone
        notices.of_process().take_signals()
        # also out of a compile that never ends
        self._ckpt.stop.shutdown.leave_after(self._window_s)
        shield_forked_workers()
        self._stream = torch.get_rng_state()
        return self._ckpt.step

    def begin_at(self, stream: torch.Tensor) -> None:
        """Torch's stream where the first step begins."""
        self._stream = stream
        torch.set_rng_state(stream)

    def tick(self, step: int) -> None:
        if self._ckpt:
            # Frameworks report each batch of an accumulated gradient under the number of the step
            # before.
            self._ckpt.tick(step) if step > self._ckpt.step else self._ckpt.poll()
            self._stream = torch.get_rng_state()

    def poll(self) -> None:
        """After each batch of an evaluation; not in one before or after the training."""
        if self._ckpt:
            # What is saved here is resumed behind the evaluation: infra/decisions/0032.
            drawn = torch.get_rng_state()
            torch.set_rng_state(self._stream)
            self._ckpt.poll()
            torch.set_rng_state(drawn)

    def evaluated(self) -> None:
        if self._ckpt:
            torch.set_rng_state(self._stream)

    def end(self, *error: Any) -> None:
        """`error`: as `__exit__` gets it; nothing at the end of the training."""
        if self._ckpt:
            self._ckpt.__exit__(*error or (None, None, None))
            self._ckpt = None


def refuse_deepspeed(strategy: object) -> None:
    """Raises InputError where `strategy`, of whatever framework, is DeepSpeed's."""
    if "deepspeed" in str(strategy).lower():
        raise InputError(
            "DeepSpeed partitions parameters and optimizer state itself, so they would be saved as"
            " per-rank state",
            got=str(strategy)[:200],
            allowed=(
                "DDP, or FSDP2 (torch.distributed.fsdp.fully_shard), which shards the same state"
            ),
            fix="train with FSDP2, or keep DeepSpeed's own save_checkpoint()",
        )
