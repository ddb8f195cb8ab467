"""Peers that live and cannot be reached: a port that a policy or a firewall closes, barred apart from a death.

Who is dead answers nowhere. Where a member answers by another way and one of its ports does not, time and again, no
regrouping helps: the process ends and says which port.
"""

import socket
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from holdfast.checkpoint.errors import CheckpointExit
from holdfast.contract.errors import InputError
from holdfast.training.elastic.control import PROBE_S, Control, Peers
from holdfast.training.elastic.membership import Epoch, Member
from holdfast.training.errors import CutOff

TRIES = 3
"""Epochs of the same members that did not meet, until a closed port is taken for one that stays closed."""


class Reach:
    def __init__(self, control: Control, peers: Peers) -> None:
        self._control, self._peers, self._me = control, peers, control.me
        self._members: tuple[Member, ...] = ()
        self._tries = 0

    def met(self, epoch: Epoch) -> None:
        self._tries = 0
        self._control.reaches = frozenset(member.index for member in epoch.members if member != self._me)

    def lost(self, epoch: Epoch, step: int) -> None:
        """An epoch was lost while it met. Raises InputError or CutOff if it will always be, for a port that is closed."""
        closed, opened = self._tried(self._others(epoch))
        self._control.reaches = (self._control.reaches | opened) - closed.keys()
        # One bad node among good ones is its own affair: who reaches another goes on without it.
        blocked = bool(closed) and not self._control.reaches
        self._tries = int(blocked) + self._tries * (blocked and epoch.members == self._members)
        self._members = epoch.members
        if self._tries == TRIES:
            for member in self._others(epoch):
                self._peers.ask(member.index, "/closed", PROBE_S, index=self._me.index, epoch=epoch.number)
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

    def _tried(self, members: list[Member]) -> tuple[dict[int, int], frozenset[int]]:
        """Of those that answer: the first closed port of each, and the places of which all are open."""
        found = self._peers.look([member.index for member in members])
        ports = {
            member.index: (self._peers.addresses[member.index][1] + 1, int(str(found[member.index].get("ear", 0))))
            for member in members
            if found.get(member.index, {}).get("incarnation") == member.incarnation
        }
        with ThreadPoolExecutor(max_workers=16, thread_name_prefix="gang-ports") as pool:
            first = dict(zip(ports, pool.map(self._first_closed, ports, ports.values()), strict=True))
        closed = {place: port for place, port in first.items() if port}
        return closed, frozenset(first) - closed.keys()

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


def others_reach(answers: Iterable[Mapping[str, object]], me: int) -> bool:
    """Whether those whom this process cannot reach do reach others: then it is this one's node."""
    return any(set(reaches) - {me} for answer in answers if isinstance(reaches := answer.get("reaches"), list))


def unreachable(
    addresses: tuple[tuple[str, int], ...],
    me: int,
    closed: Mapping[int, int],
    barred: Iterable[int],
    step: int,
    *,
    alone: bool,
) -> InputError | CheckpointExit:
    """`closed`: port of each place that lives; `barred`: places that could not reach this one. `alone`: nobody reaches
    anybody, so another try on another node would end alike."""
    lost = [
        f"place {place} is alive, and {addresses[place][0]}:{port} is closed from here"
        for place, port in closed.items()
    ]
    lost += [f"place {place} is alive, and cannot reach the ports of this one" for place in barred]
    port = addresses[me][1]
    error = InputError(
        "members of the gang cannot reach each other",
        got=f"on place {me}: " + "; ".join(lost[:4]),
        allowed=f"TCP from each pod of the Job to every other: ports {port} and {port + 1} of a process, and those that "
        "gloo and NCCL take, 1024 to 65535",
        fix="open 1024 to 65535 between the Job's own pods, ingress and egress, in the NetworkPolicy that selects them "
        "(`kubectl get networkpolicy`; a rendered job brings one of its own name) or in the nodes' firewall; rule "
        "HF155 of `python -m workloads lint` finds a policy that closes them",
    )
    return error if alone else CutOff(max(0, step), str(error))
