"""Watches the members during collectives: a slow member is waited for, a silent one is lost.

A collective has only one time limit, and a member may need long for a step: an evaluation, a
checkpoint, a slow machine. So that limit is long, and a thread asks the others meanwhile. It aborts
the collective if one is silent for as long as failure_detector.py allows, was replaced by another
process, or has left the group itself.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

from holdfast.runtime import logs
from holdfast.support.errors import InputError
from holdfast.training.gang.failure_detector import LOOK_S, FailureDetector
from holdfast.training.gang.membership import Epoch, Member
from holdfast.training.gang.peer_client import Peers, parse_epoch

# Shorter than any wait that a person notices, and longer than the all-reduce of most models, during
# which nothing is asked.
GRACE_S = 0.5
MAX_REPEATS = 4


class Watch:
    """Aborts the collectives of an epoch when one of its members is lost."""

    def __init__(
        self,
        me: Member,
        peers: Peers,
        abort: Callable[[], None],
        *,
        silent_s: float,
        only_lead_asks_all: bool = False,
    ) -> None:
        """`abort` makes the collectives of the epoch fail, from another thread. With
        `only_lead_asks_all` the other members ask only the lead, which gives up the epoch if it
        loses any of them. Otherwise the questions would grow with the square of the members.
        """
        self._me = me
        self._peers = peers
        self._abort = abort
        self._silent_s = silent_s
        self._only_lead = only_lead_asks_all
        self._running: tuple[Epoch, float] | None = None
        """Epoch of the running collectives, and their start."""
        self.silent: frozenset[int] = frozenset()
        """Members for which the last collectives were aborted. Empty if that is all the others,
        because this process may have been stopped instead.
        """
        self.detector: FailureDetector | None = None
        """Detector of the last collectives, if they lasted long enough to need one."""
        self._closed = threading.Event()
        threading.Thread(target=self._work, name="gang-watch", daemon=True).start()

    def over(self, epoch: Epoch) -> Self:
        """Watches the collectives of this epoch until the `with` block ends.

        It takes no lock and wakes no thread: an undisturbed step pays nothing.
        """
        self.silent = frozenset()
        self.detector = None
        self._running = (epoch, time.monotonic())
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._running = None

    def close(self) -> None:
        self._closed.set()

    def _work(self) -> None:
        aborted = None
        while not self._closed.wait(LOOK_S):
            running = self._running
            if running is None or running is aborted:
                continue
            _, start = running
            if time.monotonic() - start < GRACE_S:
                continue
            if self._watch(running):
                aborted = running

    def _watch(self, running: tuple[Epoch, float]) -> bool:
        """Watches until these collectives end. Returns True if it aborted them."""
        epoch, start = running
        peers = [member for member in epoch.members if member != self._me]
        if self._only_lead and epoch.lead != self._me:
            peers = [epoch.lead]
        detector = FailureDetector(
            self._peers,
            [member.index for member in peers],
            silent_s=self._silent_s,
            # Silence counts from the start of the collectives, not from the first question.
            initial_silence_s=time.monotonic() - start,
        )
        self.detector = detector
        suspects = list[Member]()
        while self._running is running and not self._closed.wait(LOOK_S):
            statuses = detector.survey()
            # Confirmed by a second survey: at a boundary some members leave the epoch a moment
            # before the last ones complete the collective.
            departed = _find_departed(peers, statuses, epoch)
            confirmed = [member for member in departed if member in suspects]
            suspects = departed
            if self._running is not running:
                return False
            if confirmed or detector.silent:
                self._report_losses(detector, confirmed)
                # If all are silent at once, this process was probably stopped itself, and it must
                # not propose a gang of its own.
                if len(detector.silent) < len(peers):
                    self.silent = frozenset(detector.silent)
                else:
                    self.silent = frozenset()
                self._abort()
                return True
        return False

    def _report_losses(self, detector: FailureDetector, departed: list[Member]) -> None:
        for index, reason in detector.silent.items():
            logs.warning("gang", f"member {index} {reason} and counts as lost")
        for member in departed:
            logs.warning("gang", f"member {member.index} left the group or was restarted")


def _find_departed(
    members: list[Member],
    statuses: Mapping[int, Mapping[str, object]],
    epoch: Epoch,
) -> list[Member]:
    """Returns the members whose status says that they are no longer in the epoch's group."""
    departed = list[Member]()
    for member in members:
        status = statuses.get(member.index)
        if status is not None and _has_departed(member, status, epoch):
            departed.append(member)
    return departed


def _has_departed(
    member: Member,
    status: Mapping[str, object],
    epoch: Epoch,
) -> bool:
    if status.get("incarnation") != member.incarnation:
        return True
    if status.get("lost") == epoch.number:
        return True
    current_epoch = parse_epoch(status)
    return current_epoch is not None and current_epoch.number > epoch.number


class Lag:
    """Limit of how far behind a member that answers may be.

    It grows if a step is repeated without a loss. An operation that took too long would take as
    long again, and the members would repeat the step forever.
    """

    def __init__(self, bound_s: float) -> None:
        self.bound_s = bound_s
        self._step = -1
        self._repeats = 0

    def record_repeat(self, step: int, reason: str) -> None:
        """Doubles the limit, as `step` is repeated with all its members.

        Raises InputError if it was repeated too often.
        """
        if step != self._step:
            self._step = step
            self._repeats = 0
        self._repeats += 1
        if self._repeats > MAX_REPEATS:
            raise InputError(
                "a step of the gang cannot be completed, although no member was lost",
                got=f"step {step} failed {self._repeats} times with the same members:"
                f" {reason[:160]}",
                allowed=f"members that are at most {self.bound_s:g} s apart in a step",
                fix=(
                    "evaluate on every member, or give ElasticGang a longer lag_s; "
                    "a member that the log names each time has a slow or faulty node: replace it"
                ),
            )
        self.bound_s *= 2
        logs.warning(
            "gang",
            f"step {step} is repeated and no member was lost: one took longer than the others"
            f" waited; they now wait {self.bound_s:g} s",
        )
