# pyright: basic, reportMissingImports=false
"""torchtitan: `checkpoint=HoldfastCheckpointManager.Config(url="gs://bucket/runs", run="run-7")` in
the configuration of its Trainer.

Restores by itself, saves every `interval` steps or at an interval that follows from the cost of a
save, and exits with 143 after a preemption, of which torchtitan itself takes no notice.
"""

# Why it is so: infra/decisions/0166.

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchtitan.components.checkpointer import BaseCheckpointManager

from holdfast.support.errors import InputError
from holdfast.training.frameworks.managed_checkpointer import ManagedCheckpointer
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW

LATEST = -1
"""torchtitan's number for the newest checkpoint."""


class HoldfastCheckpointManager(BaseCheckpointManager):
    """Implements torchtitan's contract for checkpoint managers.

        checkpoint = HoldfastCheckpointManager.Config(url="gs://bucket/runs", run="run-7")

    This is the field `checkpoint` of the configuration of torchtitan's Trainer.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseCheckpointManager.Config):
        enable: bool = True
        url: str = ""
        """URL of the store, as of a Checkpointer; empty: `folder` below the dump folder."""
        run: str = "torchtitan"
        interval: int = 0
        """Steps between checkpoints; 0: follows from the measured cost of a save."""
        window_s: float = DEFAULT_WINDOW.pod_s
        last_save_model_only: bool = False

        def __post_init__(self) -> None:
            for name, value, allowed in _list_settings(self):
                if value != allowed:
                    raise InputError(
                        f"checkpoint setting {name} is torchtitan's own",
                        got=repr(value)[:200],
                        allowed=f"{allowed!r} with HoldfastCheckpointManager",
                        fix=_FIXES.get(name, "leave it out"),
                    )

    def __init__(
        self,
        config: Config,
        *,
        dataloader: Any,
        model_parts: list[Any],
        optimizers: Any,
        lr_schedulers: Any,
        states: dict[str, Any],
        base_folder: str = "",
        **_: Any,
    ) -> None:
        self.enable = config.enable
        self.save_future = None  # saves are awaited by this library
        self._is_open = False
        if not config.enable:
            return
        self._interval = config.interval
        self._checkpoints = ManagedCheckpointer(
            config.url or f"{base_folder}/{config.folder}",
            run=config.run,
            every=config.interval or "auto",
            keep=config.keep_latest_k or sys.maxsize,
            start_from=config.initial_load_path,
            window_s=config.window_s,
        )
        self._state: dict[str, Any] = {**states, "lr_scheduler": lr_schedulers}
        # The parts themselves: their container's state has no names for what it holds.
        self._state |= _number("model", model_parts)
        self._state |= _number("optimizer", optimizers.optimizers)
        if dataloader is not None:
            self._state["dataloader"] = dataloader

    def _load(self, step: int = LATEST) -> bool:
        if step != LATEST:
            raise InputError(
                "only the newest step can be loaded",
                got=f"load_step {step}",
                allowed=f"{LATEST}: the newest checkpoint",
                fix=f"holdfast checkpoints back URL --run RUN --step {step}",
            )
        self._is_open = True
        try:
            return self._checkpoints.begin(self._state) > 0
        except BaseException:
            self._is_open = False
            raise

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        """Reports the step, which saves or stops if due. torchtitan calls this after each one."""
        try:
            self._checkpoints.tick(curr_step)
        except BaseException:
            self._end()
            raise
        if last_step:
            self._end()
        return last_step or (self._interval > 0 and curr_step % self._interval == 0)

    def _maybe_wait_for_staging(self) -> None:
        self._checkpoints.wait_until_staged()

    def _wait_for_saving(self) -> None:
        """Does nothing: `save_future` is never set."""

    def _close(self) -> None:
        self._end()

    def _end(self) -> None:
        """Ends the block, with the error that is being handled if there is one."""
        if not self._is_open:
            return
        self._is_open = False
        kind, error, trace = sys.exc_info()
        self._checkpoints.end(kind, error, trace)


_FIXES = {"load_step": "holdfast checkpoints back URL --run RUN --step STEP"}


def _list_settings(config: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields name, value and only allowed value of each setting of torchtitan's own manager."""
    yield "load_step", config.load_step, LATEST
    yield "initial_load_in_hf", config.initial_load_in_hf, False
    yield "initial_load_in_hf_quantized", config.initial_load_in_hf_quantized, False
    yield "last_save_model_only", config.last_save_model_only, False
    yield "last_save_in_hf", config.last_save_in_hf, False
    yield "exclude_from_loading", config.exclude_from_loading, []
    yield "create_seed_checkpoint", config.create_seed_checkpoint, False
    yield "load_only", config.load_only, False


def _number(name: str, parts: list[Any]) -> dict[str, Any]:
    """Returns entries of a state: `name` for one part, with numbers for several."""
    if len(parts) == 1:
        return {name: parts[0]}
    entries: dict[str, Any] = {}
    for number, part in enumerate(parts):
        entries[f"{name}-{number}"] = part
    return entries
