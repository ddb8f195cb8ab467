"""Who answers while a sum is under way: a member that is slow is waited for, one that is silent is
lost.

A collective knows only its own time limit, and a member may need long for a step: an evaluation, a
checkpoint, a slow machine. So that limit is long, and a thread asks the others meanwhile. It ends
the collective if one is silent for as long as hearing.py allows, is another process by now, or has
lost the group itself.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

from holdfast.runtime import logs
from holdfast.support.errors import InputError
from holdfast.training.gang.hearing import LOOK_S, Hearing
from holdfast.training.gang.membership import Epoch, Member
from holdfast.training.gang.peer_client import Peers, epoch_of

# Shorter than any wait that a person notices, and longer than the sums of most models: those cost
# no question.
GRACE_S = 0.5
MOST_REPEATS = 4


class Watch:
    def __init__(
        self,
        me: Member,
        peers: Peers,
        abort: Callable[[], None],
        *,
        silent_s: float,
        only_lead_asks_all: bool = False,
    ) -> None:
        """`abort`: makes the collectives of this epoch fail, from another thread.
        `only_lead_asks_all`: the others ask the lead, which loses the epoch with any of them: else
        questions grow with the square of the members.
        """
        self._me = me
        self._peers = peers
        self._abort = abort
        self._silent_s = silent_s
        self._only_lead = only_lead_asks_all
        self._over: tuple[Epoch, float] | None = None
        """The collectives that are under way, and since when."""
        self.silent: frozenset[int] = frozenset()
        """Places for which the last collectives were ended; empty where that would be all the
        others: then it may be this process that was stopped.
        """
        self.hearing: Hearing | None = None
        """That of the last collectives which lasted long enough to have one."""
        self._closed = threading.Event()
        threading.Thread(
            target=self._work,
            name="gang-watch",
            daemon=True,
        ).start()

    def over(self, epoch: Epoch) -> Self:
        """Collectives of this epoch, until the `with` ends. No lock and no thread is waked: an
        undisturbed step pays nothing.
        """
        self.silent = frozenset()
        self.hearing = None
        self._over = (epoch, time.monotonic())
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._over = None

    def close(self) -> None:
        self._closed.set()

    def _work(self) -> None:
        ended = None
        while not self._closed.wait(LOOK_S):
            over = self._over
            if (
                over
                and over is not ended
                and time.monotonic() - over[1] >= GRACE_S
                and self._lost(over)
            ):
                ended = over

    def _lost(self, over: tuple[Epoch, float]) -> bool:
        """Until these collectives are over or were ended here."""
        epoch, began = over
        others = [member for member in epoch.members if member != self._me]
        if self._only_lead and epoch.lead != self._me:
            others = [epoch.lead]
        # Silence counts from the beginning of the collectives, not from the first question.
        already_s = time.monotonic() - began
        places = [member.index for member in others]
        hearing = Hearing(
            self._peers,
            places,
            silent_s=self._silent_s,
            already_s=already_s,
        )
        self.hearing = hearing
        left: list[Member] = []
        while self._over is over and not self._closed.wait(LOOK_S):
            status = hearing.survey()
            # Twice: at a boundary some leave the epoch a moment before the last have their sum.
            before = left
            left = [member for member in others if _gone(member, status.get(member.index), epoch)]
            gone = [member for member in left if member in before]
            if self._over is over and (gone or hearing.silent):
                for place, why in hearing.silent.items():
                    logs.warning("gang", f"place {place} {why} and counts as lost")
                for member in gone:
                    logs.warning(
                        "gang",
                        f"place {member.index} has lost the group, or is another process by now",
                    )
                # All silent at once: rather this process was stopped, and it must not propose a
                # gang of itself.
                if len(hearing.silent) < len(others):
                    self.silent = frozenset(hearing.silent)
                else:
                    self.silent = frozenset()
                self._abort()
                return True
        return False


def _gone(member: Member, found: Mapping[str, object] | None, epoch: Epoch) -> bool:
    if found is None:
        return False
    now = epoch_of(found)
    return (
        found.get("incarnation") != member.incarnation
        or found.get("lost") == epoch.number
        or (now is not None and now.number > epoch.number)
    )


class Lag:
    """How far behind a member that answers may be. Grows where a step comes again without a loss:
    what took too long takes as long again, and the same members would repeat the step for ever,
    each of them billed.
    """

    def __init__(self, bound_s: float) -> None:
        self.bound_s = bound_s
        self._step = -1
        self._repeats = 0

    def repeated(self, step: int, why: str) -> None:
        """A step comes again with all its members. Raises InputError where it has come again too
        often.
        """
        self._repeats = self._repeats + 1 if step == self._step else 1
        self._step = step
        if self._repeats > MOST_REPEATS:
            raise InputError(
                "a step of the gang cannot be completed, although no member is lost",
                got=f"step {step} failed {self._repeats} times with the same members: {why[:160]}",
                allowed=f"members that are at most {self.bound_s:g} s apart in a step",
                fix=(
                    "evaluate on every member, or give ElasticGang a longer lag_s; "
                    "a place that the log names each time has a slow or faulty node: replace it"
                ),
            )
        self.bound_s *= 2
        logs.warning(
            "gang",
            f"step {step} comes again and no member was lost: one took longer than the others"
            f" waited; they now wait {self.bound_s:g} s",
        )
