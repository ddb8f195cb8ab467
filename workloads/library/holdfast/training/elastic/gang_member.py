"""This process as a gang member: its epoch, the process group of that epoch, and its state.

Regroup decides the membership. Here members form a process group, and those that are behind copy
the state of one that is ahead. If the ranks of a node share one state, one rank asks other nodes
and all use its answer.
"""

import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from holdfast.checkpoint.errors import CheckpointExit, Preempted, Superseded
from holdfast.checkpoint.failpoints import failpoint
from holdfast.runtime import logs
from holdfast.runtime.gpu import name_gpu
from holdfast.runtime.shutdown import Shutdown
from holdfast.support.errors import InputError
from holdfast.training.elastic.step_checks import StepChecks, Verdict
from holdfast.training.elastic.transfer import gather_steps, synchronize
from holdfast.training.errors import CutOff, Expelled, GangTooSmall, GroupLost, Miscomputed
from holdfast.training.gang.failure_detector import FailureDetector
from holdfast.training.gang.liveness import Watch
from holdfast.training.gang.membership import Epoch
from holdfast.training.gang.peer_client import select_members
from holdfast.training.gang.process_group import Group
from holdfast.training.gang.reachability import Reachability
from holdfast.training.gang.regroup import Regroup
from holdfast.training.gang.saves import GangSaves
from holdfast.vocabulary.job_identity import read_attempt

NO_STATE = -1
COMPLETE_WAIT_S = 5.0
"""Longest time that a member which has finished waits until the others know."""
_POLL_S = 0.05


class GangMember:
    def __init__(
        self,
        regroup: Regroup,
        group: Group,
        saves: GangSaves,
        shutdown: Shutdown,
        *,
        silent_s: float,
        window_s: float,
        members_per_node: int = 1,
        checks: StepChecks | None = None,
    ) -> None:
        self._regroup = regroup
        self.group = group
        self._saves = saves
        self._shutdown = shutdown
        self._control = regroup.control
        self._peers = regroup.peers
        self._lag = regroup.lag
        self._node = saves.node
        self._window_s = window_s
        self._members_per_node = members_per_node
        self._checks = checks
        self.me = self._control.me
        self._watch = Watch(
            self.me,
            self._peers,
            group.abort,
            silent_s=silent_s,
        )
        self._reachability = Reachability(self._control, self._peers)
        self._has_led = False
        self.epoch = Epoch(number=0, members=(self.me,))
        self.rank = 0
        """Rank of this member in the epoch."""
        self.step = NO_STATE
        """Number of steps that this member's state has, or NO_STATE."""

    @property
    def coordinator(self) -> bool:
        """True if this member leads; true on each rank of its node."""
        return self.rank == 0

    def join(self) -> None:
        """Joins or creates the gang and copies its state. Raises Preempted or GangTooSmall."""
        start = time.monotonic()
        epoch = self._agree_on_epoch(self._regroup.join)
        self._enter(epoch, start=start)

    def check_total(self, total: int) -> None:
        """Raises InputError if another member has another total of steps: the first to finish would
        complete the Job.
        """
        self._control.shown["total"] = total
        self._node.agree(lambda: self._compare_totals(total))

    def _compare_totals(self, total: int) -> None:
        indices = range(len(self._peers.addresses))
        for index, status in self._peers.look(indices).items():
            other_total = status.get("total")
            if other_total not in (0, None, total):
                raise InputError(
                    "members of the gang have different numbers of steps",
                    got=f"{total} steps here, {other_total} at member {index}",
                    allowed="one number for all",
                    fix="start every member with the same arguments",
                )

    def complete_step(self) -> None:
        """Records that a step was applied to the state, and saves if a checkpoint is due."""
        self.step += 1
        self._save(lambda: self._saves.after_step(self.step))

    def watch_collectives(self) -> AbstractContextManager[None]:
        """Makes the collectives of the block fail if a member does not answer."""
        return self._watch.over(self.epoch)

    def recover(self, error: Exception) -> None:
        """Continues with the remaining members after a collective failed.

        Raises InputError if collectives fail repeatedly without a loss.
        """
        logs.warning(
            "gang",
            f"the gradient all-reduce of step {self.step} failed: {str(error)[:160]}",
        )
        start = time.monotonic()
        lost_epoch = self.epoch
        silent = self._watch.silent
        detector = self._watch.detector
        self._leave()
        epoch = self._find_next_epoch(lost_epoch, silent, detector)
        # If no member was lost, the same members would fail at the same step again.
        is_same_gang = set(lost_epoch.members) <= set(epoch.members)
        if self.step != NO_STATE and is_same_gang:
            self._lag.record_repeat(self.step, str(error))
        self._enter(epoch, start=start)

    def resize(self, leaving: frozenset[int]) -> None:
        """Continues without the members of `leaving`, and with those that ask to join.

        Called after a step that all members have done, so nothing is lost. Raises Preempted on
        those that leave.
        """
        if leaving >= {member.index for member in self.epoch.members}:
            # All leave: a checkpoint is saved if it fits the window.
            self._saves.try_last(self.step, self._remaining_s())
        if self.me.index in leaving:
            logs.info("stop", f"leaving at step {self.step}")
            self._emit_as_lead("stop", step=self.step, reason=self._shutdown.reason)
            raise Preempted(self.step)
        start = time.monotonic()
        self._leave()
        epoch = self._find_next_epoch(self.epoch, leaving)
        self._enter(epoch, start=start)

    def log_dispute(self, verdict: Verdict) -> None:
        """Logs that members computed different gradients for the same shards."""
        text = (
            f"step {self.step}: {verdict.disputed} sets of shards have other gradients than before"
        )
        wrong = verdict.wrong_member
        if wrong is not None:
            logs.error("gang", f"{text}: member {wrong} computed wrong, and leaves the gang")
        elif verdict.repeats:
            logs.warning("gang", f"{text}: other members compute them again")
        elif verdict.suspects:
            members = " or ".join(map(str, verdict.suspects))
            logs.error("gang", f"{text}: member {members} computes wrong, and no other can tell")
        else:
            logs.error("gang", f"{text}, on several members: the program is not deterministic")

    def leave_out(self, wrong: int) -> None:
        """Continues without a member whose gradients were wrong; nothing of them was applied.

        Raises Miscomputed on that member.
        """
        if wrong == self.me.index:
            # Its pod writes the line: the mover learns from Kubernetes on which node that is.
            self._saves.report("miscomputed", step=self.step, rank=wrong)
            raise Miscomputed(
                self.step,
                "its gradients differ from those of the others: the machine is faulty",
            )
        start = time.monotonic()
        self._leave()
        epoch = self._find_next_epoch(self.epoch, frozenset({wrong}))
        self._enter(epoch, start=start)

    def finish(self, total: int, within_s: float) -> None:
        """Ends the training after the last step, once its checkpoint is committed by this member or
        another lead.
        """
        self.group.close()
        self._control.shown["finished"] = self.epoch.number
        if self._node.agree(self._await_commit):
            return
        self._saves.lead(total)
        self._save(lambda: self._saves.make_durable(total, within_s))
        self._node.agree(self._complete)

    def _await_commit(self) -> bool:
        """Waits for the lead's commit. Returns False if this member has become the lead."""
        lower = [member for member in self.epoch.members if member.index < self.me.index]
        detector = self._regroup.make_detector([member.index for member in lower])
        while True:
            answers = select_members(lower, detector.survey())
            # Members that were expelled and ask to join commit nothing.
            phases = list[object]()
            for status in answers.values():
                if status.get("phase") != "waiting":
                    phases.append(status.get("phase"))
            if not phases and not detector.unanswered:
                return False
            if phases[:1] == ["complete"]:
                self._control.enter(self.epoch, "complete")
                return True
            time.sleep(_POLL_S)

    def _complete(self) -> None:
        """Shows that the training is complete until the others know.

        A member that does not know would save the last step again, and find no peer.
        """
        self._control.enter(self.epoch, "complete")
        other_members = [member for member in self.epoch.members if member != self.me]
        deadline = time.monotonic() + COMPLETE_WAIT_S
        while time.monotonic() < deadline:
            statuses = self._peers.look_at_members(other_members).values()
            phases = {status.get("phase") for status in statuses}
            if phases <= {"complete", "waiting"}:
                return
            self._control.wait(0.1)

    def log_departure(self, reason: str, *, poll: bool = False) -> None:
        """Logs that this member leaves, and the steps that are lost. `poll` is for the main thread
        only.
        """
        loss = self._saves.describe_loss(self.step, poll=poll)
        if loss and len(self.epoch.members) > 1:
            # Each member has the whole state.
            loss += ", unless another member continues"
        logs.error("gang", f"leaving at step {max(0, self.step)}: {reason}{loss}")

    def close(self) -> None:
        self._watch.close()
        self._saves.follow()
        self.group.close()
        self._control.close()

    def _save(self, save: Callable[[], None]) -> None:
        """Calls `save`, again if a process outside the gang took the fence.

        Raises CutOff if the gang has continued on the other side of a network partition, and
        Superseded if another Job has the run: a restart would only take it back.
        """
        while True:
            try:
                return save()
            except Superseded as end:
                if not self._saves.does_gang_own_fence():
                    raise
                if self._node.agree(lambda: self._regroup.has_newer_epoch(self.epoch)):
                    raise CutOff(
                        end.step, "the gang continued on the other side of a network partition"
                    ) from end
                # The lead of a former epoch, frozen or slow, took the fence late. It can commit
                # nothing from now on.
                logs.warning("save", "taking the right to commit back from a former lead")
                self._saves.follow()
                self._saves.lead(self.step)

    def _leave(self) -> None:
        self._control.lose(self.epoch)
        self.group.close()

    def _find_next_epoch(
        self,
        epoch: Epoch,
        without: frozenset[int] = frozenset(),
        detector: FailureDetector | None = None,
    ) -> Epoch:
        def find() -> Epoch:
            return self._regroup.find_next(epoch, without=without, detector=detector)

        try:
            return self._agree_on_epoch(find)
        except Expelled:
            logs.warning("gang", "the gang continued without this node, which now rejoins it")
            self._saves.follow()
            self.step = NO_STATE
            return self._agree_on_epoch(self._regroup.join)

    def _agree_on_epoch(self, find: Callable[[], Epoch]) -> Epoch:
        try:
            return Epoch.from_json(self._node.agree(lambda: find().to_json()))
        except CheckpointExit as end:  # Regroup does not know the steps
            raise type(end)(max(0, self.step), end.reason) from end

    def _enter(self, epoch: Epoch, *, start: float) -> None:
        """Connects the members of `epoch`, or of a later one if a member is lost meanwhile, and
        synchronizes the state.

        `start` is the time at which the search for the epoch started.
        """
        while True:
            self.epoch = epoch
            self.rank = epoch.members.index(self.me)
            try:
                with self._node.vote():
                    self.group.open(epoch, self._lag.bound_s)
                self._synchronize()
                break
            except (GroupLost, RuntimeError) as error:  # of the group, and of a collective
                logs.warning(
                    "gang",
                    f"epoch {epoch.number} was lost while its members connected:"
                    f" {str(error)[:160]}",
                )
                self._leave()
            self._node.agree(partial(self._reachability.check, epoch, self.step))
            epoch = self._find_next_epoch(epoch)
        self._reachability.reset()
        self._take_role(time.monotonic() - start)
        if epoch.ending:
            self._saves.try_last(self.step, self._remaining_s())
            size = len(epoch.members)
            raise GangTooSmall(self.step, f"{size} members remain, too few for too long")

    def _take_role(self, stalled_s: float) -> None:
        if not self.coordinator:
            self._saves.follow()
            return
        # Emitted once by each process that ever leads: the ledger of a run follows its lead.
        if not self._has_led:
            self._has_led = True
            self._emit_as_lead(
                "start",
                rank=0,
                world_size=len(self.epoch.members) * self._node.size,
                attempt=read_attempt(os.environ),
                **name_gpu(),
            )
        self._saves.lead(self.step)
        # A node that has lost one of its processes counts: it is paid for.
        nodes = {member.index // self._members_per_node for member in self.epoch.members}
        job_nodes = len(self._peers.addresses) // self._members_per_node
        self._emit_as_lead(
            "resized",
            step=self.step,
            nodes=len(nodes),
            of=job_nodes,
            seconds=round(stalled_s, 3),
        )

    def _synchronize(self) -> None:
        """Copies the state of the member that is furthest ahead to those behind it."""
        failpoint("gang.synchronize")
        if self.coordinator and self.step == NO_STATE:
            self._control.enter(self.epoch, "restoring")
        # In a gang of newcomers only, the lead restores the newest checkpoint.
        with self.watch_collectives(), self._node.vote():
            steps = gather_steps(self.step, self.group.handle)
        if max(steps) == NO_STATE:
            self._restore_on_lead()
        with self.watch_collectives():
            self.step = synchronize(
                self._saves.state,
                self.step,
                self.group.device,
                self.group.handle,
                self._node,
            )
        if self._checks:
            with self.watch_collectives(), self._node.vote():
                self._checks.exchange(self.step, self.epoch, self.group.handle)

    def _restore_on_lead(self) -> None:
        # Not in a collective: a restore may take minutes, and a silent peer counts as lost after
        # seconds.
        if self.coordinator:
            self.step = self._saves.restore()
            self._control.enter(self.epoch, "member")
        else:
            self._node.agree(self._await_restored)

    def _await_restored(self) -> None:
        """Waits until the lead has restored. Raises GroupLost if it was lost."""
        lead = self.epoch.lead
        detector = self._regroup.make_detector([lead.index])
        while True:
            status = detector.survey().get(lead.index, {})
            was_replaced = bool(status) and status.get("incarnation") != lead.incarnation
            if was_replaced or detector.silent:
                raise GroupLost("the lead was lost while it restored")
            if status.get("phase") == "member":
                return
            time.sleep(_POLL_S)

    def _remaining_s(self) -> float:
        """Returns the seconds that remain of the window, or the whole window without a notice."""
        remaining_s = self._shutdown.seconds_left(self._window_s)
        if math.isinf(remaining_s):
            return self._window_s
        return max(0.1, remaining_s)

    def _emit_as_lead(self, event: str, **fields: object) -> None:
        if self.coordinator:
            self._saves.emit(event, **fields)
