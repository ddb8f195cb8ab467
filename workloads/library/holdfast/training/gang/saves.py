"""The checkpoints of a gang: its lead writes them, since every member holds the same state. All
ranks of a node that shares one state write and read together, and call each method equally often.

A member that becomes the lead takes the run's fence, so a former lead that wakes up from a long
sleep can commit nothing. Without the fence nothing is saved: each save requests it again.
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
from holdfast.vocabulary.job_identity import attempt_of


class GangSaves:
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
        """None without the fence."""
        self._damaged: dict[int, str] = {}

    def restore(self) -> int:
        """Steps that the state has after it. On the lead of a gang in which no member has a state."""
        ranks = self.node.ranks(timeout_s=self._tuning.agree_timeout_s)
        found = restore(self._storage, self._run, self.state, ranks, self._tuning, self._stop_asked)
        self._damaged = found.damaged
        for step, reason in found.skipped:
            logs.warning("restore", f"skipped step {step}: {reason}")
        self.emit(
            "restore",
            step=found.step,
            seconds=round(found.seconds, 3),
            skipped=found.skipped,
        )
        return found.step

    def lead(self, step: int) -> None:
        """From now on this member saves; `step` steps are done."""
        self._leads = True
        try:
            self._take_over(step)
        except StorageError as error:
            logs.warning("save", f"no checkpoint before the storage answers again: {error}")

    def _take_over(self, step: int) -> None:
        # Once for each lead: taking the fence again would end the uploads that are in flight.
        if self._writer:
            return
        epoch, durable, stale = self.node.decided(self._fence)
        # A new one for each: the uploads of one that has ended have left their marks in the store
        # of its ranks.
        self._ranks = self.node.ranks(timeout_s=self._tuning.agree_timeout_s)
        restored = Restored(
            # A commit that is further than this gang belongs to one that was lost with it; it must
            # not count as ours.
            step=max([0, *(s for s in durable if s <= step)]),
            skipped=[],
            damaged=self._damaged,
            commit_count=len(durable),
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

    def _fence(self) -> tuple[int, list[int], list[str]]:
        return fence.take(self._storage, self._run, gang=self._gang), *behind_fence(
            self._storage, self._run
        )

    def follow(self) -> None:
        """Another member leads: what is still in flight here has lost its right to commit."""
        self._leads = False
        if self._writer:
            self._writer.close()
            self._writer = None

    def fenced_by_own_gang(self) -> bool:
        """Whether it was a member of this gang that took the fence last."""
        return self.node.decided(lambda: fence.newest_gang(self._storage, self._run) == self._gang)

    def after_step(self, step: int) -> None:
        self._poll()
        if not self._leads or step % self._every:
            return
        # The storage may have been silent when this member became the lead: the fence is requested
        # again.
        self.lead(step)
        if self._writer and step > max(self._writer.last_step, self._writer.durable_step):
            self._writer.save(step, self.state)

    def _poll(self) -> None:
        if self._writer:
            self._writer.poll()

    def make_durable(self, step: int, within_s: float) -> None:
        """Raises NotDurable or Superseded unless `step` is committed in time. On the lead."""
        try:
            self._take_over(step)
        except StorageError as error:
            raise NotDurable(step, f"the last state is not stored: {error}") from error
        assert self._writer
        if step > max(self._writer.last_step, self._writer.durable_step):
            # It waits for the upload before it, where a save on the way would be dropped: no later
            # one comes.
            self._writer.save(step, self.state, in_any_case=True)
        self._writer.wait(within_s)
        try:
            self._writer.check_durable(step)
        finally:
            # Before any rank acts on it: the one that the others hear the end from may leave next,
            # with what they hear by.
            with self.node.together():
                pass

    def try_last(self, step: int, within_s: float) -> None:
        """Before this member leaves: whatever fits."""
        if not self._leads:
            return
        try:
            self.make_durable(step, within_s)
        except CheckpointExit as end:
            logs.warning("stop", f"no last checkpoint: {end.reason}")

    def loss(self, step: int, *, ask: bool) -> str:
        """For a line: what leaving at `step` loses, as far as this member has written it. `ask`:
        from the main thread, for the newest commit.
        """
        with suppress(CheckpointExit):  # it is leaving already
            if ask:
                self._poll()
        lost = step - self._writer.durable_step if self._writer else 0
        if lost > 0:
            return f"; the newest checkpoint is of step {step - lost}: {lost} steps are lost"
        return ""

    def _on_report(self, report: Report) -> None:
        if report.done in ("failed", "fenced"):
            logs.warning(
                "save",
                f"checkpoint of step {report.step} failed: {report.reason}; training goes on",
            )
        event = report.event()
        if event:
            self.emit(event[0], **event[1])

    def emit(self, event: str, **fields: object) -> None:
        if self._events:
            self._events.emit(event, **fields)


def open_store(url: str, tuning: Tuning, peers: Peers, *, hold_s: float) -> Storage:
    """Raises InputError where it cannot be used; CheckpointExit where it cannot be used now and
    could be before: it would be wrong to end the Job for it, as bad input does.
    """
    try:
        return Retrying(
            open_storage(url, request_s=tuning.request_s), budget_s=min(hold_s, tuning.retry_s)
        )
    except InputError as error:
        if not (attempt_of(os.environ) or peers.look([*range(len(peers.addresses))])):
            raise
        logs.error("gang", f"leaving before the first step: {error}")
        raise CheckpointExit(0, str(error)) from error
