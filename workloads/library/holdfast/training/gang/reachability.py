"""Peers that live and cannot be reached: a port that a policy or a firewall closes, distinguished
from a death.

Where a member answers questions and one of its ports does not, time and again, no regrouping helps:
the process ends and says which port.
"""

import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from holdfast.support.errors import InputError
from holdfast.training.errors import CutOff
from holdfast.training.gang.member_server import Control
from holdfast.training.gang.membership import Epoch, Member
from holdfast.training.gang.peer_client import PROBE_S, Peers

MOST_NAMED = 4
TRIES = 3
"""Epochs of the same members that did not meet, until a closed port counts as permanently closed.
"""


class Reach:
    def __init__(self, control: Control, peers: Peers) -> None:
        self._control = control
        self._peers = peers
        self._me = control.me
        self._members: tuple[Member, ...] = ()
        self._tries = 0

    def met(self) -> None:
        self._tries = 0
        self._control.shown["closed"] = []

    def lost(self, epoch: Epoch, step: int) -> None:
        """An epoch was lost while it met. Raises InputError or CutOff if it will always be, for a
        port that is closed.
        """
        others = [member.index for member in epoch.members if member != self._me]
        status = self._peers.look(others)
        closed = self._closed(status)
        self._control.shown["closed"] = sorted(closed)
        bars = {place: _places(found) for place, found in status.items()} | {
            self._me.index: {*closed}
        }
        # One bad node among good ones is its own affair: who reaches another goes on without it.
        blocked = (bool(closed) and len(closed) == len(others)) or gives_way(self._me.index, bars)
        # Of other members it counts from the beginning: the closed port may have been that of one
        # that left.
        self._tries = int(blocked) + self._tries * (blocked and epoch.members == self._members)
        self._members = epoch.members
        if self._tries == TRIES:
            # Where the others do not reach each other either, another try on another node would end
            # the same way.
            alone = all({*others} - {place} <= bars[place] for place in status)
            error = unreachable(self._peers, self._me.index, closed)
            raise error if alone else CutOff(max(0, step), str(error))

    def _closed(self, status: Mapping[int, Mapping[str, Any]]) -> dict[int, int]:
        """The first closed port of each that answers and has one."""
        tried = {
            place: (*self._peers.stores[place], int(str(found.get("ear", 0))))
            for place, found in status.items()
        }
        with ThreadPoolExecutor(max_workers=16, thread_name_prefix="gang-ports") as pool:
            first = zip(tried, pool.map(self._first_closed, tried, tried.values()), strict=True)
            return {place: port for place, port in first if port}

    def _first_closed(self, place: int, ports: tuple[int, ...]) -> int:
        """0: all open."""
        host = self._peers.addresses[place][0]
        return next((port for port in ports if port and not _connects(host, port)), 0)


def unreachable(peers: Peers, me: int, closed: Mapping[int, int]) -> InputError:
    """`closed`: a port of each place that is alive and closed from here."""
    # In a large gang a policy closes hundreds of them, for one reason.
    lost = [
        f"place {place} is alive, and {peers.addresses[place][0]}:{port} is closed from here"
        for place, port in closed.items()
    ]
    lost = lost[:MOST_NAMED] or ["other members cannot reach the ports of this one"]
    port = peers.addresses[me][1]
    return InputError(
        "members of the gang cannot reach each other",
        got=f"on place {me}: " + "; ".join(lost),
        allowed=(
            f"TCP from each pod of the Job to every other: ports {port} and {port + 1} of a"
            " process, and those that gloo and NCCL take, 1024 to 65535"
        ),
        fix=(
            "open 1024 to 65535 between the Job's own pods, ingress and egress, in the"
            " NetworkPolicy that selects them (`kubectl get networkpolicy`; a rendered job brings"
            " one of its own name) or in the nodes' firewall; rule HF155 of `holdfast lint` finds a"
            " policy that closes them"
        ),
    )


def _connects(host: str, port: int) -> bool:
    with suppress(OSError):
        socket.create_connection((host, port), timeout=PROBE_S).close()
        return True
    return False


def _places(answer: Mapping[str, object]) -> set[int]:
    """The places that a member found closed."""
    listed = answer.get("closed")
    if isinstance(listed, list):
        return {place for place in listed if isinstance(place, int)}
    return set()


def gives_way(me: int, bars: Mapping[int, set[int]]) -> bool:
    """Of two that have a closed port between them, in whichever direction, the one with more such
    neighbours goes; of equals the higher place. `bars`: what each found closed.
    """
    apart = {}
    for place, found in bars.items():
        apart[place] = {*found, *(other for other, theirs in bars.items() if place in theirs)}
    return any((len(apart[me]), me) > (len(apart.get(other, ())), other) for other in apart[me])
