"""Entries of the state that act on what is durable, such as a curve that shows no step twice."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.restore import Restored
from holdfast.checkpoint.state import targets
from holdfast.checkpoint.stores.storage import random_hex


@runtime_checkable
class CommitListener(Protocol):
    """An entry with a state of its own that Checkpointer tells about ticks and commits."""

    def begin_run(self, run: str, step: int, *, token: str, is_coordinator: bool) -> None:
        """Called on every rank after the restore of `step`. `token` is drawn for this start, and
        the same on every rank.
        """

    def record_tick(self, step: int) -> None:
        """Called on every rank once a step is done, before it may be saved."""

    def record_commit(self, step: int) -> None:
        """Called once a rank knows that a step is durable, also after a restore. Must not wait."""

    def take_over(self) -> None:
        """Called on a rank that commits its state alone, for the coordinator that was lost."""

    def end_run(self, timeout_s: float, *, is_complete: bool) -> None:
        """Called on every rank when the block ends."""


def find_listeners(state: Mapping[str, Any]) -> list[CommitListener]:
    """Returns the entries of a state that are listeners."""
    listeners: list[CommitListener] = []
    for _, value in targets(state):
        if isinstance(value, CommitListener):
            listeners.append(value)
    return listeners


class CommitListeners:
    """Passes the ticks and commits of a run to the listeners of its state."""

    def __init__(
        self,
        state: Mapping[str, Any],
        run: str,
        ranks: Ranks,
        restored: Restored,
        *,
        is_trial: bool,
    ) -> None:
        """`is_trial`: no commit is passed on: this run is a test."""
        self._listeners = find_listeners(state)
        self._is_trial = is_trial
        self._durable_step = 0  # what a run without a checkpoint states
        # Without listeners too: another rank may have one, and would wait for this one.
        token = ranks.agree(random_hex(4), lambda tokens: tokens[0])
        for listener in self._listeners:
            listener.begin_run(run, restored.step, token=token, is_coordinator=ranks.coordinator)
        self.record_commit(restored.committed_step)

    def record_tick(self, step: int) -> None:
        for listener in self._listeners:
            listener.record_tick(step)

    def record_commit(self, step: int) -> None:
        """Passes on the newest durable step, if it is news."""
        if step <= self._durable_step or self._is_trial:
            return
        self._durable_step = step
        for listener in self._listeners:
            listener.record_commit(step)

    def end(self, timeout_s: float, *, is_complete: bool) -> None:
        for listener in self._listeners:
            listener.end_run(timeout_s, is_complete=is_complete)
        self._listeners = []
