"""Peers that live and cannot be reached: a port that a policy or a firewall closes, barred apart from a death.

Who is dead answers nowhere. Where a member answers by another way and one of its ports does not, time and again, no
regrouping helps: the process ends and says which port.
"""

import socket
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from holdfast.checkpoint.errors import CheckpointExit
from holdfast.contract.errors import InputError
from holdfast.training.elastic.asking import PROBE_S, Peers, epoch_of
from holdfast.training.elastic.control import Control
from holdfast.training.elastic.membership import Epoch, Member
from holdfast.training.elastic.signs import Sign
from holdfast.training.errors import CutOff

MOST_NAMED = 4
TRIES = 3
"""Epochs of the same members that did not meet, until a closed port is taken for one that stays closed."""


class Reach:
    def __init__(self, control: Control, peers: Peers) -> None:
        self._control, self._peers, self._me = control, peers, control.me
        self._members: tuple[Member, ...] = ()
        self._tries = 0

    def met(self, epoch: Epoch) -> None:
        self._tries = 0
        self._control.closed = frozenset()
        self._control.reaches = frozenset(member.index for member in epoch.members if member != self._me)

    def lost(self, epoch: Epoch, step: int) -> None:
        """An epoch was lost while it met. Raises InputError or CutOff if it will always be, for a port that is closed."""
        others = self._others(epoch)
        status = self._peers.look([member.index for member in others])
        closed = self._closed(others, status)
        known = self._control.reaches & {member.index for member in others}
        opened = frozenset(member.index for member in others if member.index in status)
        self._control.reaches = (known | opened) - closed.keys()
        self._control.closed = frozenset(closed)
        bars = {place: places_in(found, "closed") for place, found in status.items()} | {self._me.index: {*closed}}
        # One bad node among good ones is its own affair: who reaches another goes on without it.
        blocked = (bool(closed) and not self._control.reaches) or gives_way(self._me.index, bars)
        # Of other members it counts from the beginning: the closed port may have been that of one that left.
        self._tries = int(blocked) + self._tries * (blocked and epoch.members == self._members)
        self._members = epoch.members
        if self._tries == TRIES:
            for member in self._others(epoch):
                self._peers.ask(member.index, "/closed", PROBE_S, **asdict(self._me), epoch=epoch.number)
            raise self._unreachable(epoch, closed, step)
        self.heard(epoch, step)

    def heard(self, epoch: Epoch, step: int) -> None:
        """Of those who ended for `epoch`: whom they could not reach. It ends as well, or it would found a gang alone."""
        barred = self._control.barred(epoch.number)
        if barred and not self._control.reaches - barred:
            raise self._unreachable(epoch, {}, step)

    def _unreachable(self, epoch: Epoch, closed: Mapping[int, int], step: int) -> InputError | CheckpointExit:
        answers = self._peers.look([member.index for member in self._others(epoch)]).values()
        barred = self._control.barred(epoch.number) - closed.keys()
        alone = not others_reach(answers, self._me.index)
        return unreachable(self._peers.addresses, self._me.index, closed, barred, step, alone=alone)

    def _others(self, epoch: Epoch) -> list[Member]:
        return [member for member in epoch.members if member != self._me]

    def _closed(self, members: list[Member], status: Mapping[int, Mapping[str, Any]]) -> dict[int, int]:
        """The first closed port of each that has one."""
        tried = {
            member.index: self._ports(member.index, status.get(member.index, {}))
            for member in members
            # A port of a process that was replaced meanwhile says nothing about the new one.
            if status.get(member.index, {}).get("incarnation", member.incarnation) == member.incarnation
        }
        with ThreadPoolExecutor(max_workers=16, thread_name_prefix="gang-ports") as pool:
            first = zip(tried, pool.map(self._first_closed, tried, tried.values()), strict=True)
            return {place: port for place, port in first if port}

    def _ports(self, place: int, found: Mapping[str, Any]) -> tuple[int, ...]:
        # Who does not answer is alive all the same if the next epoch names it again.
        return (
            (*self._peers.stores[place], int(str(found.get("ear", 0)))) if found else (self._peers.addresses[place][1],)
        )

    def _first_closed(self, place: int, ports: tuple[int, ...]) -> int:
        """0: all open."""
        host = self._peers.addresses[place][0]
        return next((port for port in ports if port and not connects(host, port)), 0)


def connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=PROBE_S).close()
    except OSError:
        return False
    return True


def places_in(answer: Mapping[str, object], what: str) -> set[int]:
    listed = answer.get(what)
    return {place for place in listed if isinstance(place, int)} if isinstance(listed, list) else set()


def gives_way(me: int, bars: Mapping[int, set[int]]) -> bool:
    """Of two that have a closed port between them, in whichever direction, the one with more such neighbours goes; of
    equals the higher place. `bars`: what each found closed."""
    apart = {
        place: {*found, *(other for other, theirs in bars.items() if place in theirs)} for place, found in bars.items()
    }
    return any((len(apart[me]), me) > (len(apart.get(other, ())), other) for other in apart[me])


def cut_off(
    me: int, status: Mapping[int, Mapping[str, Any]], alive: Mapping[int, Sign]
) -> tuple[set[int], set[int]] | None:
    """Whom this process cannot reach and who cannot reach it, if it waits for a gang in vain. `alive`: who lives and
    does not answer."""
    others = {place: found for place, found in status.items() if place != me}
    barred = {place for place, found in others.items() if me in places_in(found, "closed")}
    if barred == others.keys():
        barred |= {place for place, sign in alive.items() if me in sign.closed}
        return ({*alive} - barred, barred) if alive or barred else None
    # The others' lead, that answers them.
    first = min(me, *others)
    for found in others.values():
        epoch = epoch_of(found)
        leads = {epoch.lead.index} if epoch else {place for place in alive if place < first}
        if closed := leads & alive.keys() & places_in(found, "reaches"):
            return closed, set()
    return None


def others_reach(answers: Iterable[Mapping[str, object]], me: int) -> bool:
    """Whether those whom this process cannot reach do reach others: then it is this one's node."""
    return any(places_in(answer, "reaches") - {me} for answer in answers)


def _silent(host: str, port: int) -> str:
    if connects(host, port):  # its seal is of another key, so that nothing of it is believed
        return f"{host}:{port} is open and answers with another key (HOLDFAST_CHECKPOINT_KEY_FILE)"
    return f"{host}:{port} is closed from here"


def unreachable(
    addresses: tuple[tuple[str, int], ...],
    me: int,
    closed: Mapping[int, int],
    barred: Iterable[int],
    step: int,
    *,
    alone: bool,
) -> InputError | CheckpointExit:
    """`closed`: port of each place that lives; `barred`: places that could not reach this one. `alone`: no member reaches
    anybody, so another try on another node would end the same way."""
    # In a large gang a policy closes hundreds of them, for one reason.
    shown = [*closed.items()][:MOST_NAMED]
    lost = [f"place {place} is alive, and {_silent(addresses[place][0], port)}" for place, port in shown]
    lost += [f"place {place} is alive, and cannot reach the ports of this one" for place in barred]
    port = addresses[me][1]
    error = InputError(
        "members of the gang cannot reach each other",
        got=f"on place {me}: " + "; ".join(lost[:MOST_NAMED]),
        allowed=f"TCP from each pod of the Job to every other: ports {port} and {port + 1} of a process, and those that "
        "gloo and NCCL take, 1024 to 65535",
        fix="open 1024 to 65535 between the Job's own pods, ingress and egress, in the NetworkPolicy that selects them "
        "(`kubectl get networkpolicy`; a rendered job brings one of its own name) or in the nodes' firewall; rule "
        "HF155 of `holdfast lint` finds a policy that closes them; for another key, mount the same secret in every pod",
    )
    return error if alone else CutOff(max(0, step), str(error))
