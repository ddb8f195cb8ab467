"""Finds the next epoch: at the start, after a loss, and when members leave or join.

The lead is the member with the lowest index in the Job among those that answer. It waits until all
living members have left the old group too, and proposes an epoch; the storage decides. Every loop
here asks the members again in each round, so if a lead dies at any point, the next one takes over.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from holdfast.checkpoint.errors import Preempted, StorageError
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.stores import Storage
from holdfast.runtime import logs
from holdfast.training.errors import CutOff, Expelled, GangTooSmall
from holdfast.training.gang.failure_detector import PATIENCE, SILENT_S, FailureDetector
from holdfast.training.gang.liveness import Lag
from holdfast.training.gang.member_server import POLL_S, Control
from holdfast.training.gang.membership import Epoch, Member, newest_number, propose
from holdfast.training.gang.peer_client import Peers, parse_epoch, select_members
from holdfast.training.gang.reachability import TRIES, make_unreachable_error

LEAVING = "leaving"
"""Entry of a status: this member has a notice, and serves its memory until its window ends."""
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
        leaves_at_once: bool = False,
    ) -> None:
        """`gather_s` is the time that a start waits for more than the minimum of members, `hold_s`
        the time that too few wait. `silent_s` is that of FailureDetector. With `leaves_at_once` a
        member with a notice enters no other epoch.
        """
        self._leaves_at_once = leaves_at_once
        self._storage = storage
        self._run = run
        self.control = control
        self.peers = peers
        self._job_size = len(peers.addresses)
        self.lag = lag
        self._stop_asked = stop_asked
        self._min_members = min_members
        self._gather_s = gather_s
        self._hold_s = hold_s
        self._me = control.me
        self._silent_s = silent_s
        self._late_report_epoch = 0
        """Epoch for which late members were logged."""
        self._unanswered_report_epoch = 0
        """Epoch for which members that do not answer were logged."""
        self._expelled_by: Epoch | None = None
        """Newest epoch that continued without this member."""

    def join(self) -> Epoch:
        """Joins the running gang, or creates one.

        Raises Preempted, GangTooSmall, and CutOff if the lead cannot reach this member.
        """
        # Peers that ask this member learn from it that their old epoch is over.
        self.control.enter(self._expelled_by, "waiting")
        start = time.monotonic()
        other_indices = [index for index in range(self._job_size) if index != self._me.index]
        detector = self.make_detector(other_indices)
        while True:
            if self._stop_asked():
                raise Preempted(0)
            statuses = detector.survey()
            lead = _choose_lead(statuses, self._me.index)
            epoch = None
            if lead != self._me.index:
                epoch = self._ask_to_join(lead)
            # A member that does not answer yet may be at work, and a new gang would end its gang.
            elif not detector.unanswered:
                epoch = self._create_gang(start)
            if epoch:
                return epoch
            # A lead at work decides how long to wait; before there is one, waiting nodes are paid
            # for nothing.
            waited_s = time.monotonic() - start
            if lead == self._me.index and waited_s > self._gather_s + self._hold_s:
                raise GangTooSmall(0, self._describe_shortage())

    def _ask_to_join(self, lead: int) -> Epoch | None:
        failpoint("gang.join")
        answer = self._ask(lead, "/join")
        if _count_unheard(answer, self._me) >= TRIES:
            raise CutOff(0, str(make_unreachable_error(self.peers, self._me.index, {})))
        epoch = parse_epoch(answer)
        if epoch is None or self._me not in epoch.members:
            return None
        # A member that does not know better yet offers the epoch that has expelled this one: both
        # would wait in it forever.
        if self._expelled_by and epoch.number <= self._expelled_by.number:
            self.control.wait(_LOOK_S)  # that answer came at once
            return None
        return self._enter(epoch)

    def find_next(
        self,
        epoch: Epoch,
        *,
        without: frozenset[int] = frozenset(),
        detector: FailureDetector | None = None,
    ) -> Epoch:
        """Returns the epoch after `epoch`: its living members, less those of `without`, and those
        that ask to join.

        `detector` is the one that surveyed the members until now. Raises Expelled, and Preempted
        if a member with a notice leaves at once.
        """
        remaining = [member for member in epoch.members if member.index not in without]
        start = time.monotonic()
        other_indices = [member.index for member in remaining if member != self._me]
        detector = self.make_detector(other_indices, predecessor=detector)
        departed = set[int]()
        while True:
            if self._leaves_at_once and self._stop_asked():
                raise Preempted(0)
            answers = select_members(remaining, detector.survey())
            departed |= {member.index for member in find_leaving(answers)}
            remaining = [member for member in remaining if member.index not in departed]
            # Members that finished do not report. The lowest one commits and exits.
            finished = set[Member]()
            for member, status in answers.items():
                if member.index > self._me.index and status.get("finished") == epoch.number:
                    finished.add(member)
            living = list[Member]()
            for member in remaining:
                if member == self._me or (member in answers and member not in finished):
                    living.append(member)
            if living and living[0] != self._me:
                next_epoch = self._report(living[0], epoch)
                if next_epoch:
                    return next_epoch
                continue
            # If this member was frozen, others have met without it: the next epoch exists already.
            is_decided = _has_newer_epoch(answers.values(), epoch)
            unanswered = detector.unanswered - departed
            if unanswered and not is_decided:
                self._log_unanswered(epoch, unanswered)
                continue
            next_epoch = self._lead(
                epoch,
                living,
                start,
                is_decided=is_decided,
                finished_count=len(finished),
            )
            if next_epoch:
                return next_epoch

    def _report(self, lead: Member, epoch: Epoch) -> Epoch | None:
        """Reports to the lead that this member has lost the group of `epoch`."""
        failpoint("gang.report")
        answer = self._ask(lead.index, "/report", epoch=epoch.number)
        next_epoch = parse_epoch(answer)
        if next_epoch is None or next_epoch.number <= epoch.number:
            return None
        return self._enter(next_epoch)

    def make_detector(
        self, places: list[int], *, predecessor: FailureDetector | None = None
    ) -> FailureDetector:
        return FailureDetector(
            self.peers,
            places,
            silent_s=self._silent_s,
            predecessor=predecessor,
        )

    def _describe_shortage(self) -> str:
        host, port = self.peers.addresses[self._me.index]
        limit_s = self._gather_s + self._hold_s
        return (
            f"fewer than {self._min_members} members came within {limit_s:g} s; if more are"
            f" running, open TCP {port} and 1024 to 65535 between the Job's pods (this is {host}):"
            " rule HF155 of `holdfast lint` finds the policy that closes them"
        )

    def has_newer_epoch(self, epoch: Epoch) -> bool:
        """Returns whether the gang has continued after `epoch`, or the storage does not answer."""
        try:
            return newest_number(self._storage, self._run) > epoch.number
        except StorageError:
            return True  # unknown: this member rejoins and asks

    def _create_gang(self, start: float) -> Epoch | None:
        """Proposes the first epoch, once enough members have come.

        Called on the lowest of the waiting members. Returns None if it has to be called again.
        """
        members = _sort_members([*self._survey_joiners(), self._me])
        waited_s = time.monotonic() - start
        is_complete = len(members) == self._job_size
        is_enough = len(members) >= self._min_members and waited_s >= self._gather_s
        if not (is_complete or is_enough):
            self.control.wait(_LOOK_S)
            return None
        try:
            # A former gang of the run has left its epochs, and a number is never used twice.
            number = newest_number(self._storage, self._run) + 1
            return self._propose(Epoch(number=number, members=members), start)
        # Another member created the gang at the same moment: the next round asks it to join.
        except Expelled:
            return None
        except StorageError as error:
            return self._wait_for_storage(error, start)

    def _lead(
        self,
        epoch: Epoch,
        living: list[Member],
        start: float,
        *,
        is_decided: bool,
        finished_count: int,
    ) -> Epoch | None:
        """Proposes the epoch after `epoch`. Returns None if it has to be called again.

        Called on the lowest living member.
        """
        waited_s = time.monotonic() - start
        reported = self.control.get_reports(epoch.number)
        late = list[int]()
        for member in living:
            if member != self._me and member.index not in reported:
                late.append(member.index)
        if not is_decided:
            self._log_late(epoch, late, waited_s)
        proposal = successor(
            epoch,
            self._me,
            living=living,
            reported=reported,
            joiners=self._survey_joiners(),
            # A member that computes notices the loss in its next collective.
            patient=waited_s < self.lag.bound_s and not is_decided,
            # A member with a notice has no time to wait for others.
            holding=waited_s < self._hold_s and not self._stop_asked(),
            # Members that finished count: this member repeats the last step on their behalf.
            min_members=self._min_members - finished_count,
        )
        if proposal is None:
            self.control.wait(_LOOK_S)
            return None
        return self._propose(proposal, start)

    def _log_late(
        self,
        epoch: Epoch,
        late: list[int],
        waited_s: float,
    ) -> None:
        # Once for each epoch: this is called many times a second.
        if not late or waited_s < POLL_S or self._late_report_epoch == epoch.number:
            return
        self._late_report_epoch = epoch.number
        indices = ", ".join(map(str, late))
        logs.warning(
            "gang",
            f"waiting for member {indices}, which answers and is still in its step:"
            f" {self.lag.bound_s:g} s",
        )

    def _log_unanswered(self, epoch: Epoch, unanswered: frozenset[int]) -> None:
        if self._unanswered_report_epoch == epoch.number:
            return
        self._unanswered_report_epoch = epoch.number
        indices = ", ".join(map(str, sorted(unanswered)))
        limit_s = PATIENCE * self._silent_s
        logs.warning(
            "gang",
            f"waiting up to {limit_s:g} s for member {indices}: its machine accepts connections,"
            " its process does not answer",
        )

    def _survey_joiners(self) -> list[Member]:
        """Returns the processes that ask to join and answer."""
        joiners = list(self.control.get_joiners().values())
        survey = self.peers.survey([member.index for member in joiners])
        alive = select_members(joiners, survey.answers)
        slow = survey.unanswered | survey.unknown
        # Every later epoch would wait for a process that died. A slow one may join the next epoch.
        unreachable = set[Member]()
        for member in joiners:
            if member not in alive and member.index not in slow:
                unreachable.add(member)
        self.control.forget(unreachable)
        return list(alive)

    def _propose(self, epoch: Epoch, start: float) -> Epoch | None:
        failpoint("gang.propose")
        try:
            stored = propose(self._storage, self._run, epoch)
        except StorageError as error:
            return self._wait_for_storage(error, start)
        failpoint("gang.proposed")
        return self._enter(stored)

    def _wait_for_storage(self, error: StorageError, start: float) -> None:
        """Waits before the next try. Raises GangTooSmall after `hold_s`: without the storage there
        is no membership and no checkpoint.
        """
        reason = f"the gang's next epoch cannot be stored: {error}"
        if time.monotonic() - start >= self._hold_s or self._stop_asked():
            raise GangTooSmall(0, reason) from error
        logs.warning("gang", f"{reason}; trying again for at most {self._hold_s:g} s")
        self.control.wait(POLL_S)

    def _enter(self, epoch: Epoch) -> Epoch:
        """Enters `epoch` and returns it. Raises Expelled if this member is not in it."""
        if self._me not in epoch.members:
            self._expelled_by = epoch
            raise Expelled
        self.control.enter(epoch, "member")
        if epoch.lead == self._me:
            size = len(epoch.members)
            indices = ", ".join(str(member.index) for member in epoch.members)
            logs.info(
                "gang",
                f"epoch {epoch.number}: {size} of {self._job_size} members ({indices})",
            )
        return epoch

    def _ask(self, index: int, path: str, **body: Any) -> dict[str, object] | None:
        # The answer may itself wait for POLL_S.
        return self.peers.ask(
            index,
            path,
            POLL_S + 1,
            **asdict(self._me),
            **body,
        )


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
    """Returns the epoch that the lowest living member proposes after `epoch`, or None if it has to
    wait.

    `reported` are the indices of members that have lost the group of `epoch` too. `patient` says
    whether to wait for the others, `holding` whether too few members wait for more.
    """
    missing = [member for member in living if member != me and member.index not in reported]
    if missing and patient:
        return None
    present = [member for member in living if member not in missing]
    # A restarted process asks to join while its predecessor may still count as living: the later
    # entry wins.
    members = _sort_members([*joiners, me, *present])
    is_too_small = len(members) < min_members
    if is_too_small and holding:
        return None
    return Epoch(
        number=epoch.number + 1,
        members=members,
        ending=is_too_small,
    )


def find_leaving(statuses: Mapping[Member, Mapping[str, Any]]) -> list[Member]:
    """Returns the members that have a notice and show that they enter no other epoch."""
    return [member for member, status in statuses.items() if status.get(LEAVING)]


def _count_unheard(answer: Mapping[str, Any] | None, me: Member) -> int:
    """Returns how often this member has asked the lead, which could not reach it in turn."""
    unheard = (answer or {}).get("unheard")
    if not isinstance(unheard, dict):
        return 0
    times = unheard.get(me.incarnation)
    return times if isinstance(times, int) else 0


def _has_newer_epoch(answers: Iterable[Mapping[str, Any]], epoch: Epoch) -> bool:
    for answer in answers:
        current_epoch = parse_epoch(answer)
        if current_epoch and current_epoch.number > epoch.number:
            return True
    return False


def _sort_members(members: list[Member]) -> tuple[Member, ...]:
    """Sorts by index. If several members have the same index, the last one is taken."""
    by_index = {member.index: member for member in members}
    return tuple(by_index[index] for index in sorted(by_index))


def _choose_lead(statuses: dict[int, dict[str, object]], me: int) -> int:
    """Returns the lowest member of the newest epoch that is at work, else the lowest member that
    waits.
    """
    working: list[tuple[int, int]] = []
    waiting = [me]
    for index, status in statuses.items():
        phase = status.get("phase")
        if phase == "waiting":
            waiting.append(index)
        epoch = parse_epoch(status)
        if epoch and phase in ("member", "restoring") and index != me:
            # A member in an older epoch does not know of the newer one yet.
            working.append((-epoch.number, index))
    if working:
        _, lead = min(working)
        return lead
    return min(waiting)
