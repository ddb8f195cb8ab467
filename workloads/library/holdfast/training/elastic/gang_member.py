"""This process as a member: its epoch, the group of that epoch, and the state, which is the same on
all members.

Who belongs is decided by Regroup; here the new members meet, and a member that is behind gets the
state of one that is ahead. On each rank of a node that shares one state the same happens: one of
them asks the others' nodes, and all go by that.
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
from holdfast.runtime.shutdown import Shutdown
from holdfast.support.errors import InputError
from holdfast.training.elastic.transfer import all_applied, synchronize
from holdfast.training.errors import CutOff, Expelled, GangTooSmall, GroupLost
from holdfast.training.gang.hearing import Hearing
from holdfast.training.gang.liveness import Watch
from holdfast.training.gang.membership import Epoch
from holdfast.training.gang.peer_client import of_members
from holdfast.training.gang.process_group import Group
from holdfast.training.gang.reachability import Reach
from holdfast.training.gang.regroup import Regroup
from holdfast.training.gang.saves import GangSaves
from holdfast.vocabulary.job_identity import attempt_of

NO_STATE = -1
LAST_LOOK_S = 5.0


class Crew:
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
        self.me = self._control.me
        self._watch = Watch(self.me, self._peers, group.abort, silent_s=silent_s)
        self._reach = Reach(self._control, self._peers)
        self._led = False
        self.epoch = Epoch(number=0, members=(self.me,))
        self.rank = 0
        """Of this member in the epoch."""
        self.step = NO_STATE
        """Steps done, by this member's state."""

    @property
    def coordinator(self) -> bool:
        """Whether this member leads; of a node each rank."""
        return self.rank == 0

    def join(self) -> None:
        """Be a member, with the state that the others hold. Raises Preempted, GangTooSmall."""
        began = time.monotonic()
        self._enter(self._decided(self._regroup.first), began=began)

    def check_total(self, total: int) -> None:
        """Of two members with different numbers of steps the one that comes later is refused: the
        first to end would end the Job. Raises InputError.
        """
        self._control.shown["total"] = total
        self._node.decided(lambda: self._compare_totals(total))

    def _compare_totals(self, total: int) -> None:
        for place, status in self._peers.look([*range(len(self._peers.addresses))]).items():
            theirs = status.get("total")
            if theirs not in (0, None, total):
                raise InputError(
                    "members of the gang have different numbers of steps",
                    got=f"{total} steps here, {theirs} at place {place}",
                    allowed="one number for all",
                    fix="start every place with the same arguments",
                )

    def done(self) -> None:
        """One more step is applied to the state."""
        self.step += 1
        self._keep(lambda: self._saves.after_step(self.step))

    def together(self) -> AbstractContextManager[None]:
        """Collectives of this epoch: a member that does not answer makes them fail."""
        return self._watch.over(self.epoch)

    def lost(self, error: Exception) -> None:
        """A collective failed: go on with those who are left. Raises InputError where collectives
        fail again and again without a loss.
        """
        logs.warning("gang", f"a sum of step {self.step} failed: {str(error)[:160]}")
        began = time.monotonic()
        before = self.epoch
        silent = self._watch.silent
        heard = self._watch.hearing
        self._leave()
        epoch = self._after(before, silent, heard)
        # No member was lost, so the same members would fail at the same step again.
        if self.step != NO_STATE and {*before.members} <= {*epoch.members}:
            self._lag.repeated(self.step, str(error))
        self._enter(epoch, began=began)

    def resize(self, leaving: frozenset[int]) -> None:
        """At a step that all have done. The leavers' state is the others' as well, so nothing is
        lost. Raises Preempted on those who leave.
        """
        if leaving >= {member.index for member in self.epoch.members}:
            # The state goes to the storage, as much of it as the window allows.
            self._saves.try_last(self.step, self._seconds_left())
        if self.me.index in leaving:
            logs.info("stop", f"leaving at step {self.step}")
            self._emit_as_lead("stop", step=self.step, reason=self._shutdown.reason)
            raise Preempted(self.step)
        began = time.monotonic()
        self._leave()
        self._enter(self._after(self.epoch, leaving), began=began)

    def finish(self, total: int, within_s: float) -> None:
        """The last step is done on all: complete only once its checkpoint is committed, by
        whichever lead is left.
        """
        self.group.close()
        self._control.shown["finished"] = self.epoch.number
        if self._node.decided(self._others_commit):
            return
        self._saves.lead(total)
        self._keep(lambda: self._saves.make_durable(total, within_s))
        self._node.decided(self._complete)

    def _others_commit(self) -> bool:
        """False: this is the lead that is left."""
        lower = [member for member in self.epoch.members if member.index < self.me.index]
        hearing = self._regroup.hearing([member.index for member in lower])
        while True:
            answers = of_members(lower, hearing.survey())
            # Members that were left out of the gang and ask to join end nothing.
            phases = []
            for found in answers.values():
                if found.get("phase") != "waiting":
                    phases.append(found.get("phase"))
            if not phases and not hearing.unanswered:
                return False
            if phases[:1] == ["complete"]:
                self._control.enter(self.epoch, "complete")
                return True
            time.sleep(0.05)

    def _complete(self) -> None:
        """A member that has not seen the end would save it again, and find no peer."""
        self._control.enter(self.epoch, "complete")
        others = [member for member in self.epoch.members if member != self.me]
        ends = time.monotonic() + LAST_LOOK_S
        while time.monotonic() < ends:
            phases = {found.get("phase") for found in self._peers.answers(others).values()}
            if phases <= {"complete", "waiting"}:
                return
            self._control.wait(0.1)

    def last_words(self, reason: str, *, ask: bool = False) -> None:
        logs.error(
            "gang",
            f"leaving at step {max(0, self.step)}: {reason}{self._saves.loss(self.step, ask=ask)}",
        )

    def close(self) -> None:
        self._watch.close()
        self._saves.follow()
        self.group.close()
        self._control.close()

    def _keep(self, save: Callable[[], None]) -> None:
        """Again, where a member without a place in the gang took the right to commit. Raises CutOff
        where the gang has gone on beyond a torn network; Superseded where another Job has the run:
        a new start would only take it back.
        """
        while True:
            try:
                return save()
            except Superseded as end:
                if not self._saves.fenced_by_own_gang():
                    raise
                if self._node.decided(lambda: self._regroup.went_on_without(self.epoch)):
                    raise CutOff(
                        end.step, "the gang went on beyond a torn network, and commits there"
                    ) from end
                # The lead of an epoch before this one, frozen or slow, took the fence late. It
                # commits nothing any more.
                logs.warning("save", "taking the right to commit back from a former lead")
                self._saves.follow()
                self._saves.lead(self.step)

    def _leave(self) -> None:
        self._control.lose(self.epoch)
        self.group.close()

    def _after(
        self, epoch: Epoch, without: frozenset[int] = frozenset(), heard: Hearing | None = None
    ) -> Epoch:
        try:
            return self._decided(lambda: self._regroup.after(epoch, without=without, heard=heard))
        except Expelled:
            logs.warning("gang", "the gang went on without this node, which now joins it again")
            self._saves.follow()
            self.step = NO_STATE
            return self._decided(self._regroup.first)

    def _decided(self, decide: Callable[[], Epoch]) -> Epoch:
        try:
            return Epoch.from_json(self._node.decided(lambda: decide().to_json()))
        except CheckpointExit as end:  # who looks for an epoch knows of no steps
            raise type(end)(max(0, self.step), end.reason) from end

    def _enter(self, epoch: Epoch, *, began: float) -> None:
        """Meet the members of `epoch`, or of the one after if a member is lost meanwhile, and hold
        what they hold.
        """
        while True:
            self.epoch = epoch
            self.rank = epoch.members.index(self.me)
            try:
                with self._node.together():
                    self.group.open(epoch, self._lag.bound_s)
                self._hold_what_others_hold()
                break
            except (GroupLost, RuntimeError) as error:  # of the group, and of a collective
                logs.warning(
                    "gang", f"epoch {epoch.number} was lost while it met: {str(error)[:160]}"
                )
                self._leave()
            self._node.decided(partial(self._reach.lost, epoch, self.step))
            epoch = self._after(epoch)
        self._reach.met()
        self._take_role(time.monotonic() - began)
        if epoch.ending:
            self._saves.try_last(self.step, self._seconds_left())
            raise GangTooSmall(
                self.step, f"{len(epoch.members)} members are left, too few for too long"
            )

    def _take_role(self, stalled_s: float) -> None:
        if not self.coordinator:
            self._saves.follow()
            return
        size = len(self.epoch.members) * self._node.size
        # once for each process that ever leads: the account of a run follows its lead
        if not self._led:
            self._led = True
            self._emit_as_lead(
                "start",
                rank=0,
                world_size=size,
                attempt=attempt_of(os.environ),
            )
        self._saves.lead(self.step)
        # A node that has lost one of its processes counts: it is there, and paid for.
        nodes = len({member.index // self._members_per_node for member in self.epoch.members})
        of = len(self._peers.addresses) // self._members_per_node
        self._emit_as_lead(
            "resized",
            step=self.step,
            nodes=nodes,
            of=of,
            seconds=round(stalled_s, 3),
        )

    def _hold_what_others_hold(self) -> None:
        failpoint("gang.synchronize")
        if self.coordinator and self.step == NO_STATE:
            self._control.enter(self.epoch, "restoring")
        # A gang of newcomers has no one to ask: its lead takes up the newest checkpoint, and gives
        # it to the others.
        with self.together(), self._node.together():
            steps = all_applied(self.step, self.group.handle)
        if max(steps) == NO_STATE:
            self._restore_on_lead()
        with self.together():
            self.step = synchronize(
                self._saves.state, self.step, self.group.device, self.group.handle, self._node
            )

    def _restore_on_lead(self) -> None:
        # Not in a collective: a restore may take minutes, and a silent peer counts as lost after
        # seconds.
        if self.coordinator:
            self.step = self._saves.restore()
            self._control.enter(self.epoch, "member")
        else:
            self._node.decided(self._await_restored)

    def _await_restored(self) -> None:
        place = self.epoch.lead.index
        hearing = self._regroup.hearing([place])
        while True:
            lead = hearing.survey().get(place)
            replaced = lead is not None and lead.get("incarnation") != self.epoch.lead.incarnation
            if replaced or hearing.silent:
                raise GroupLost("the lead was lost while it restored")
            if lead and lead.get("phase") == "member":
                return
            time.sleep(0.05)

    def _seconds_left(self) -> float:
        left = self._shutdown.seconds_left(self._window_s)
        # Without a notice the nodes are given back by choice, so there is as much time as a notice
        # would give.
        return self._window_s if math.isinf(left) else max(0.1, left)

    def _emit_as_lead(self, event: str, **fields: object) -> None:
        if self.coordinator:
            self._saves.emit(event, **fields)
