"""Finding the next epoch: at the start, after a loss, and at a boundary where a member leaves or
comes.

The lead is the member with the lowest place in the Job among those that answer. It waits until all
who live have lost the old group as well, and proposes; the storage decides. Every loop here looks
around again, so a lead that dies in the middle of anything is followed by the next.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from holdfast.checkpoint.errors import Preempted, StorageError
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.stores import Storage
from holdfast.runtime import logs
from holdfast.training.errors import CutOff, Expelled, GangTooSmall
from holdfast.training.gang.hearing import PATIENCE, SILENT_S, Hearing
from holdfast.training.gang.liveness import Lag
from holdfast.training.gang.member_server import POLL_S, Control
from holdfast.training.gang.membership import Epoch, Member, newest_number, propose
from holdfast.training.gang.peer_client import Peers, epoch_of, of_members
from holdfast.training.gang.reachability import TRIES, unreachable

_LOOK_S = 0.05


class Regroup:
    def __init__(
        self,
        storage: Storage,
        run: str,
        control: Control,
        peers: Peers,
        lag: Lag,
        *,
        min_members: int,
        gather_s: float,
        hold_s: float,
        stop_asked: Callable[[], bool],
        silent_s: float = SILENT_S,
    ) -> None:
        """`gather_s`: how long a start waits for more than the least; `hold_s`: how long too few
        wait; `silent_s`: as Hearing counts it.
        """
        self._storage = storage
        self._run = run
        self.control = control
        self.peers = peers
        self._places = len(peers.addresses)
        self.lag = lag
        self._stop_asked = stop_asked
        self._min_members = min_members
        self._gather_s = gather_s
        self._hold_s = hold_s
        self._me = control.me
        self._silent_s = silent_s
        self._reported_late = self._reported_unanswered = 0
        self._left_out_by: Epoch | None = None
        """The newest that went on without this member."""

    def first(self) -> Epoch:
        """Join the gang that is there, or found one. Raises Preempted, GangTooSmall, and CutOff
        where the lead cannot reach this member.
        """
        # Who asks in turn learns from it that their old epoch is over.
        self.control.enter(self._left_out_by, "waiting")
        began = time.monotonic()
        others = [place for place in range(self._places) if place != self._me.index]
        hearing = self.hearing(others)
        while True:
            if self._stop_asked():
                raise Preempted(0)
            status = hearing.survey()
            lead = _lead_to_ask(status, self._me.index)
            if lead != self._me.index:
                failpoint("gang.join")
                answer = self._ask(lead, "/join")
                found = epoch_of(answer)
                if _times_unheard(answer, self._me) >= TRIES:
                    raise CutOff(0, str(unreachable(self.peers, self._me.index, {})))
                if found and self._me in found.members:
                    # A member that has not heard yet still offers the epoch that is over for this
                    # one: both would wait there for ever.
                    if self._left_out_by is None or found.number > self._left_out_by.number:
                        return self._entered(found)
                    self.control.wait(_LOOK_S)  # that answer came at once
            # One that does not answer yet may be at work, and what is founded beside it would end
            # its gang.
            elif not hearing.unanswered and (epoch := self._found(began)):
                return epoch
            # Where a gang is at work its lead decides; before that, waiting costs what waiting
            # nodes cost.
            elif time.monotonic() - began > self._gather_s + self._hold_s:
                raise GangTooSmall(0, self._too_few())

    def after(
        self, epoch: Epoch, *, without: frozenset[int] = frozenset(), heard: Hearing | None = None
    ) -> Epoch:
        """The epoch that follows: those who live, less those who leave or are silent, and those who
        want to join.

        `heard`: what asked the members until now. Raises Expelled. The state is not this function's
        business.
        """
        stayers = [member for member in epoch.members if member.index not in without]
        began = time.monotonic()
        hearing = self.hearing(
            [member.index for member in stayers if member != self._me], before=heard
        )
        while True:
            answers = of_members(stayers, hearing.survey())
            # Who has done the last step reports nothing more. A lower place commits, and is gone
            # soon.
            done = [
                m
                for m, found in answers.items()
                if m.index > self._me.index and found.get("finished") == epoch.number
            ]
            living = [m for m in stayers if m == self._me or (m in answers and m not in done)]
            if not living or living[0] == self._me:
                # Others have met without this member, that was frozen: what it proposes is decided
                # already.
                ahead = any(
                    found and found.number > epoch.number
                    for found in map(epoch_of, answers.values())
                )
                if hearing.unanswered and not ahead:
                    self._report_unanswered(epoch, hearing.unanswered)
                elif proposed := self._lead(
                    epoch,
                    living,
                    began,
                    ahead=ahead,
                    done=len(done),
                ):
                    return proposed
            else:
                failpoint("gang.report")
                found = epoch_of(self._ask(living[0].index, "/report", epoch=epoch.number))
                if found and found.number > epoch.number:
                    return self._entered(found)

    def hearing(self, places: list[int], *, before: Hearing | None = None) -> Hearing:
        return Hearing(
            self.peers,
            places,
            silent_s=self._silent_s,
            before=before,
        )

    def _too_few(self) -> str:
        host, port = self.peers.addresses[self._me.index]
        return (
            f"fewer than {self._min_members} members came within {self._gather_s + self._hold_s:g}"
            f" s; if more are running, open TCP {port} and 1024 to 65535 between the Job's pods"
            f" (this is {host}): rule HF155 of `holdfast lint` finds the policy that closes them"
        )

    def went_on_without(self, epoch: Epoch) -> bool:
        try:
            return newest_number(self._storage, self._run) > epoch.number
        except StorageError:
            return True  # unknown: a newcomer asks

    def _found(self, began: float) -> Epoch | None:
        """On the lowest of those who wait: the first epoch, once enough have come."""
        members = _by_place([*self._joiners(), self._me])
        late = time.monotonic() - began >= self._gather_s
        if len(members) == self._places or (late and len(members) >= self._min_members):
            try:
                # A former gang of the run has left its epochs, and a number is never given twice.
                number = newest_number(self._storage, self._run) + 1
                return self._propose(Epoch(number=number, members=members), began)
            # Another founded the gang at the same moment: the next look finds it, and asks to come
            # in.
            except Expelled:
                return None
            except StorageError as error:
                return self._refused(error, began)
        self.control.wait(_LOOK_S)
        return None

    def _lead(
        self,
        epoch: Epoch,
        living: list[Member],
        began: float,
        *,
        ahead: bool,
        done: int,
    ) -> Epoch | None:
        """On the lowest that lives: None while others have to be waited for."""
        waited = time.monotonic() - began
        reported = self.control.reported(epoch.number)
        late = []
        for member in living:
            if member != self._me and member.index not in reported:
                late.append(member.index)
        if not ahead:
            self._report_late(epoch, late, waited)
        proposal = successor(
            epoch,
            self._me,
            living=living,
            reported=reported,
            joiners=self._joiners(),
            # One that computes notices in its next collective.
            patient=waited < self.lag.bound_s and not ahead,
            # A member with a notice has no time to hold for others.
            holding=waited < self._hold_s and not self._stop_asked(),
            # Those that have done the last step are there: it is for them that this member does it
            # too.
            min_members=self._min_members - done,
        )
        if proposal is None:
            self.control.wait(_LOOK_S)
            return None
        return self._propose(proposal, began)

    def _report_late(self, epoch: Epoch, late: list[int], waited_s: float) -> None:
        # Once for each epoch: this runs many times a second.
        if late and waited_s >= POLL_S and self._reported_late != epoch.number:
            self._reported_late = epoch.number
            places = ", ".join(map(str, late))
            logs.warning(
                "gang",
                f"waiting for place {places}, which answers and is still in its step:"
                f" {self.lag.bound_s:g} s",
            )

    def _report_unanswered(self, epoch: Epoch, unanswered: frozenset[int]) -> None:
        if self._reported_unanswered != epoch.number:
            self._reported_unanswered = epoch.number
            places = ", ".join(map(str, sorted(unanswered)))
            most_s = PATIENCE * self._silent_s
            logs.warning(
                "gang",
                f"waiting up to {most_s:g} s for place {places}: its machine takes connections, its"
                " process is silent",
            )

    def _joiners(self) -> list[Member]:
        asking = self.control.joining().values()
        survey = self.peers.survey([member.index for member in asking])
        there = of_members([*asking], survey.answers)
        # Every later epoch would wait for a member that died. One that is only slow to answer may
        # join the next one.
        slow = survey.unanswered | survey.unknown
        self.control.forget(
            {member for member in asking if member not in there and member.index not in slow}
        )
        return [*there]

    def _propose(self, epoch: Epoch, began: float) -> Epoch | None:
        failpoint("gang.propose")
        try:
            decided = propose(self._storage, self._run, epoch)
        except StorageError as error:
            return self._refused(error, began)
        failpoint("gang.proposed")
        return self._entered(decided)

    def _refused(self, error: StorageError, began: float) -> None:
        """Without the storage nothing says who belongs to the gang, and no checkpoint can be kept
        either.
        """
        reason = f"the gang's next epoch cannot be stored: {error}"
        if time.monotonic() - began >= self._hold_s or self._stop_asked():
            raise GangTooSmall(0, reason) from error
        logs.warning("gang", f"{reason}; trying again for at most {self._hold_s:g} s")
        self.control.wait(POLL_S)

    def _entered(self, epoch: Epoch) -> Epoch:
        """Raises Expelled."""
        if self._me not in epoch.members:
            self._left_out_by = epoch
            raise Expelled
        self.control.enter(epoch, "member")
        places = ", ".join(str(member.index) for member in epoch.members)
        if epoch.lead == self._me:
            logs.info(
                "gang",
                f"epoch {epoch.number}: {len(epoch.members)} of {self._places} members ({places})",
            )
        return epoch

    def _ask(self, index: int, path: str, **body: Any) -> dict[str, object] | None:
        # An answer to these may itself wait for POLL_S.
        return self.peers.ask(index, path, POLL_S + 1, **asdict(self._me), **body)


def successor(
    epoch: Epoch,
    me: Member,
    *,
    living: list[Member],
    reported: frozenset[int],
    joiners: list[Member],
    patient: bool,
    holding: bool,
    min_members: int,
) -> Epoch | None:
    """What the lowest living member proposes after `epoch`; None while others have to be waited
    for.

    `reported`: places that have lost the group of `epoch` as well. `patient`: whether to wait for
    those that have not; `holding`: whether too few wait for more.
    """
    missing = [member for member in living if member != me and member.index not in reported]
    if missing and patient:
        return None
    # A place that restarted asks again while its dead self may still count as living: the later
    # entry wins.
    members = _by_place([*joiners, me, *(member for member in living if member not in missing)])
    if len(members) < min_members and holding:
        return None
    return Epoch(
        number=epoch.number + 1,
        members=members,
        ending=len(members) < min_members,
    )


def _times_unheard(answer: Mapping[str, Any] | None, me: Member) -> int:
    """How often the lead has heard this member ask, and has not reached it itself."""
    unheard = (answer or {}).get("unheard")
    times = unheard.get(me.incarnation) if isinstance(unheard, dict) else 0
    return times if isinstance(times, int) else 0


def _by_place(members: list[Member]) -> tuple[Member, ...]:
    """Of two with one place the later in the list."""
    by_index = {member.index: member for member in members}
    return tuple(by_index[index] for index in sorted(by_index))


def _lead_to_ask(status: dict[int, dict[str, object]], me: int) -> int:
    """The lowest member of the newest epoch that anybody works in; else the lowest of those who
    wait.
    """
    at_work: list[tuple[int, int]] = []
    for index, found in status.items():
        epoch = epoch_of(found)
        if epoch and found.get("phase") in ("member", "restoring") and index != me:
            # Who works in an older epoch has only not heard of the newer one yet.
            at_work.append((-epoch.number, index))
    if at_work:
        return min(at_work)[1]
    return min([me, *(index for index, found in status.items() if found.get("phase") == "waiting")])
