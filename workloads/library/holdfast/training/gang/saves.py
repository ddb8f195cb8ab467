"""Checkpoints of a gang: its lead writes them, since every member holds the same state.

If the ranks of a node share one state, all of them write and read together, and call each method
equally often. A member that becomes the lead takes the run's fence, so that a former lead which was
frozen can commit nothing. Without the fence nothing is saved: each save requests it again.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast.checkpoint import Tuning
from holdfast.checkpoint.errors import CheckpointExit, NotDurable, StorageError
from holdfast.checkpoint.gangs import (
    CheckpointWriter,
    Hazard,
    Report,
    Restored,
    Start,
    behind_fence,
    fence,
    restore,
)
from holdfast.checkpoint.stores import Retrying, Storage, open_storage
from holdfast.runtime import logs
from holdfast.runtime.events import EventLog
from holdfast.support.errors import InputError
from holdfast.training.gang.node import ALONE, Node
from holdfast.training.gang.peer_client import Peers
from holdfast.vocabulary.job_identity import read_attempt
from holdfast.vocabulary.telemetry import KIND_TRAINING


class GangSaves:
    """Saves and restores of this member; saves only while it leads."""

    def __init__(
        self,
        url: str,
        storage: Storage,
        run: str,
        state: dict[str, Any],
        *,
        gang: str,
        every: int,
        keep: int,
        tuning: Tuning,
        events: EventLog | None,
        stop_asked: Callable[[], bool],
        node: Node = ALONE,
    ) -> None:
        self._url = url
        self._storage = storage
        self._run = run
        self.state = state
        self._every = every
        self._keep = keep
        self._tuning = tuning
        self._events = events
        self._stop_asked = stop_asked
        self._gang = gang
        self.node = node
        self._leads = False
        self._writer: CheckpointWriter | None = None
        """None if this member does not have the fence."""
        self._damaged: dict[int, str] = {}

    def restore(self) -> int:
        """Restores the newest checkpoint and returns its number of steps.

        Called on the lead of a gang in which no member has a state.
        """
        ranks = self.node.ranks(timeout_s=self._tuning.agree_timeout_s)
        restored = restore(
            self._storage,
            self._run,
            self.state,
            ranks,
            self._tuning,
            self._stop_asked,
        )
        self._damaged = restored.damaged
        for step, reason in restored.skipped:
            logs.warning("restore", f"skipped step {step}: {reason}")
        self.emit(
            "restore",
            step=restored.step,
            seconds=round(restored.seconds, 3),
            skipped=restored.skipped,
        )
        return restored.step

    def lead(self, step: int) -> None:
        """Makes this member save from now on, after `step` steps."""
        self._leads = True
        try:
            self._take_over(step)
        except StorageError as error:
            logs.warning("save", f"no checkpoint before the storage answers again: {error}")

    def _take_over(self, step: int) -> None:
        # Once for each lead: taking the fence again would end the uploads in flight.
        if self._writer:
            return
        epoch, durable_steps, stale = self.node.agree(self._take_fence)
        # New ranks for each writer: a former one has left its keys in the store of its ranks.
        self._ranks = self.node.ranks(timeout_s=self._tuning.agree_timeout_s)
        # A commit of a later step was lost with an earlier gang, and must not count as this one's.
        reachable_steps = [durable for durable in durable_steps if durable <= step]
        restored = Restored(
            step=max(reachable_steps, default=0),
            skipped=[],
            damaged=self._damaged,
            commit_count=len(durable_steps),
        )
        self._writer = CheckpointWriter(
            self._url,
            self._run,
            self._ranks,
            keep=self._keep,
            tuning=self._tuning,
            began=Start(
                restored=restored,
                epoch=epoch,
                stale=tuple(stale),
            ),
            on_report=self._on_report,
            stop_asked=self._stop_asked,
            hazard=Hazard(),
        )

    def _take_fence(self) -> tuple[int, list[int], list[str]]:
        """Returns the epoch of the fence, the durable steps, and stale objects."""
        epoch = fence.take(self._storage, self._run, gang=self._gang)
        durable_steps, stale = behind_fence(self._storage, self._run)
        return epoch, durable_steps, stale

    def follow(self) -> None:
        """Stops saving, as another member leads. Uploads in flight can no longer commit."""
        self._leads = False
        if self._writer:
            self._writer.close()
            self._writer = None

    def does_gang_own_fence(self) -> bool:
        """Returns whether a member of this gang took the fence last."""
        return self.node.agree(self._check_fence)

    def _check_fence(self) -> bool:
        return fence.newest_gang(self._storage, self._run) == self._gang

    def after_step(self, step: int) -> None:
        """Saves on the lead if a checkpoint is due after `step` steps."""
        self._poll()
        if not self._leads or step % self._every:
            return
        # The storage may not have answered when this member became the lead: the fence is requested
        # again.
        self.lead(step)
        if self._writer and self._needs_save(self._writer, step):
            self._writer.save(step, self.state)

    def _needs_save(self, writer: CheckpointWriter, step: int) -> bool:
        return step > max(writer.last_step, writer.durable_step)

    def _poll(self) -> None:
        if self._writer:
            self._writer.poll()

    def make_durable(self, step: int, within_s: float) -> None:
        """Saves `step` on the lead. Raises NotDurable or Superseded unless it commits in time."""
        try:
            self._take_over(step)
        except StorageError as error:
            raise NotDurable(step, f"the last state is not stored: {error}") from error
        writer = self._writer
        assert writer
        if self._needs_save(writer, step):
            # It waits for the upload before it, where an ordinary save would be skipped: no later
            # save follows.
            writer.save(step, self.state, in_any_case=True)
        writer.wait(within_s)
        try:
            writer.check_durable(step)
        finally:
            # All ranks wait for each other here: the speaker may leave next, and closes the store
            # from which the others read the result.
            with self.node.vote():
                pass

    def try_last(self, step: int, within_s: float) -> None:
        """Saves a last checkpoint before this member leaves, if it fits the time."""
        if not self._leads:
            return
        try:
            self.make_durable(step, within_s)
        except CheckpointExit as end:
            logs.warning("stop", f"no last checkpoint: {end.reason}")

    def describe_loss(self, step: int, *, poll: bool) -> str:
        """Returns a clause for the log that says what leaving at `step` loses.

        Empty if nothing is lost, as far as this member has saved. `poll` looks for the newest
        commit first, and is for the main thread only.
        """
        with suppress(CheckpointExit):  # this member is leaving already
            if poll:
                self._poll()
        if not self._writer:
            return ""
        durable_step = self._writer.durable_step
        if step <= durable_step:
            return ""
        lost_steps = step - durable_step
        return f"; the newest checkpoint is of step {durable_step}: {lost_steps} steps are lost"

    def _on_report(self, report: Report) -> None:
        if report.done in ("failed", "fenced"):
            logs.warning(
                "save",
                f"checkpoint of step {report.step} failed: {report.reason}; training continues",
            )
        event = report.event()
        if event:
            name, fields = event
            self.emit(name, **fields)

    def emit(self, event: str, **fields: object) -> None:
        if self._events:
            self._events.emit(event, **fields)

    def report(self, event: str, **fields: object) -> None:
        """Emits an event that the platform acts on, also for a loop without an event log."""
        if self._events:
            self.emit(event, **fields)
            return
        if not self.node.is_speaker:
            return
        events = EventLog.open(
            None,
            job=self._run,
            kind=KIND_TRAINING,
        )
        with events:
            events.emit(event, **fields)


def open_store(
    url: str,
    tuning: Tuning,
    peers: Peers,
    *,
    hold_s: float,
) -> Storage:
    """Opens the storage of a gang. Raises InputError if it cannot be used.

    Raises CheckpointExit instead if it could be used before: by a former attempt of this pod, or by
    other members. Bad input would end the whole Job.
    """
    try:
        storage = open_storage(url, request_s=tuning.request_s)
        return Retrying(storage, budget_s=min(hold_s, tuning.retry_s))
    except InputError as error:
        is_first_attempt = read_attempt(os.environ) == 0
        if is_first_attempt and not peers.look(range(len(peers.addresses))):
            raise
        logs.error("gang", f"leaving before the first step: {error}")
        raise CheckpointExit(0, str(error)) from error
