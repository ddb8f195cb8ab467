"""Signs of life in the storage: two members of which neither reaches the other's port learn there that both live.

Who waits for a gang, and the lead of one that lacks members, creates a small object now and then. A place that goes on
giving signs and answers no question is alive behind a closed port. Nothing here decides who belongs to the gang.
"""

import contextlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.checkpoint.errors import AlreadyExists, NotFound, StorageError
from holdfast.checkpoint.stores import Storage, put_new
from holdfast.contract import object_names
from holdfast.runtime import logs
from holdfast.training.elastic.asking import Peers
from holdfast.training.elastic.membership import Member

# This many in a row that come while the place does not answer take longer than a cluster's DNS holds on to the address
# of a pod that was replaced.
EVERY_S, ENOUGH = 15.0, 3
QUIET = 2
"""Looks without a new sign, until a place that gave some is taken for dead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    member: Member
    number: int
    reaches: frozenset[int]
    """Some of the places that answer it."""
    closed: frozenset[int]
    """Some of those that do not answer it and live: its last word."""

    @property
    def name(self) -> str:
        # Three of each, as an object's name has a limit.
        lists = ("_".join(map(str, sorted(places)[:3])) for places in (self.reaches, self.closed))
        return f"alive.{self.member.index}.{self.member.incarnation}.{self.number}." + ".".join(
            f"x{each}" for each in lists
        )

    @classmethod
    def read(cls, name: str) -> "Sign | None":
        """None: not a sign."""
        kind, *parts = name.split(".")
        try:
            place, incarnation, number, reaches, closed = parts
            member = Member(index=int(place), incarnation=incarnation)
            sign = cls(member=member, number=int(number), reaches=_places(reaches), closed=_places(closed))
        except ValueError:
            return None
        return sign if kind == "alive" else None


def _places(text: str) -> frozenset[int]:
    return frozenset(int(place) for place in text[1:].split("_") if place)


class Signs:
    def __init__(self, storage: Storage, run: str, me: Member, peers: Peers, *, gather_s: float) -> None:
        # More than one within the time that a start waits for others.
        self._every_s = max(0.1, min(EVERY_S, 0.75 * gather_s))
        self._storage, self._run, self._me, self._peers = storage, run, me, peers
        self._changed = threading.Condition()
        self._giving = self._looking = self._ended = False
        self._reaches: frozenset[int] = frozenset()
        self._given: list[Sign] = []
        self._known: dict[Member, int] | None = None
        """The newest sign of each; None before the first look, which counts nothing: it may be of the dead."""
        self._in_vain: dict[int, tuple[int, Sign]] = {}
        """Place -> signs that came while it did not answer, and the newest."""
        self._quiet: dict[int, int] = {}
        """Place -> looks since its newest sign."""
        threading.Thread(target=self._work, name="gang-signs", daemon=True).start()

    def give(self, *, reaches: Iterable[int], looking: bool) -> None:
        with self._changed:
            self._reaches = frozenset(reaches) - {self._me.index}
            if looking and not self._looking:
                self._known, self._in_vain, self._quiet = None, {}, {}
            self._giving, self._looking = True, looking
            self._changed.notify_all()

    def rest(self) -> None:
        with self._changed:
            self._giving = self._looking = False

    def close(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def unanswered(self) -> dict[int, Sign]:
        """The newest sign of each place that lives and answers no question of this process, or said so of this one."""
        with self._changed:
            return {
                place: sign
                for place, (times, sign) in self._in_vain.items()
                if times >= ENOUGH or self._me.index in sign.closed
            }

    def in_doubt(self, answering: Iterable[int]) -> bool:
        """Whether a member that does not answer may be alive: no time to found a gang without it. Who reaches a lower
        place of those that answer here founds none."""
        seen = {*answering, self._me.index}
        with self._changed:
            doubted = ((place, sign) for place, (times, sign) in self._in_vain.items() if times)
            return any(not any(lower < place for lower in sign.reaches & seen) for place, sign in doubted)

    def last_word(self, closed: Iterable[int]) -> None:
        """Before this process ends for them: they need not find out by themselves."""
        with contextlib.suppress(StorageError):
            self._put(frozenset(closed))

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._giving or self._ended)
                ended, looking = self._ended, self._looking
            with contextlib.suppress(StorageError, NotFound):
                if ended:
                    self._tidy(keep=0)
                    return
                self._put(frozenset())
                # The newest stays: it is what others find.
                self._tidy(keep=1)
                if looking:
                    self._look()
            with self._changed:
                self._changed.wait_for(lambda: self._ended, self._every_s)

    def _put(self, closed: frozenset[int]) -> None:
        number = self._given[-1].number + 1 if self._given else 0
        sign = Sign(member=self._me, number=number, reaches=self._reaches, closed=closed)
        self._given.append(sign)
        # The name has this incarnation: only an earlier try whose answer was lost can have taken it.
        with contextlib.suppress(AlreadyExists):
            put_new(self._storage, self._object(sign), b"{}")

    def _tidy(self, *, keep: int) -> None:
        # A last word stays: others read it after this process is gone.
        while len(self._given) > keep and not self._given[-1].closed:
            self._storage.delete(self._object(self._given.pop(0)))

    def _look(self) -> None:
        signs = [sign for stat in self._storage.list(object_names.gang_prefix(self._run)) if (sign := _sign(stat.name))]
        for sign in signs:
            # Of a process that this one replaces.
            if sign.member.index == self._me.index and sign.member != self._me:
                self._storage.delete(self._object(sign))
        newest = {s.member: s for s in sorted(signs, key=lambda s: s.number) if s.member.index != self._me.index}
        with self._changed:
            known, self._known = self._known, {member: sign.number for member, sign in newest.items()}
        fresh = [s for member, s in newest.items() if known is not None and s.number > known.get(member, -1)]
        # Without the lock, as each question may take a second.
        answers = self._peers.look([sign.member.index for sign in fresh])
        with self._changed:
            for sign in fresh:
                self._hear(sign, answered=sign.member.index in answers)
            self._forget(quiet=self._in_vain.keys() - {sign.member.index for sign in fresh})

    def _hear(self, sign: Sign, *, answered: bool) -> None:
        place = sign.member.index
        times, before = self._in_vain.get(place, (0, sign))
        # Another incarnation at the place counts from the beginning.
        times = 0 if answered else times * (before.member == sign.member) + 1
        self._in_vain[place], self._quiet[place] = (times, sign), 0
        if times == ENOUGH:
            logs.warning(
                "gang", f"place {place} is alive and does not answer: its port is closed to place {self._me.index}"
            )

    def _forget(self, quiet: set[int]) -> None:
        for place in quiet:
            self._quiet[place] += 1
            if self._quiet[place] >= QUIET:
                del self._in_vain[place]

    def _object(self, sign: Sign) -> str:
        return f"{object_names.gang_prefix(self._run)}/{sign.name}"


def _sign(name: str) -> Sign | None:
    return Sign.read(name.rpartition("/")[2])
