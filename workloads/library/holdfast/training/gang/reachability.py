"""Distinguishes members with a port that a policy or a firewall closes from lost members.

If a member answers questions and one of its ports repeatedly does not, no regrouping helps: the
process exits and names the port.
"""

import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from holdfast.support.errors import InputError
from holdfast.training.errors import CutOff
from holdfast.training.gang.member_server import Control
from holdfast.training.gang.membership import Epoch, Member
from holdfast.training.gang.peer_client import PROBE_S, Peers

MAX_REPORTED = 4
TRIES = 3
"""Number of failed connections of the same members after which a closed port counts as permanent.
"""


class Reachability:
    """Counts epochs whose members could not connect, and looks for closed ports."""

    def __init__(self, control: Control, peers: Peers) -> None:
        self._control = control
        self._peers = peers
        self._me = control.me
        self._members: tuple[Member, ...] = ()
        self._tries = 0

    def reset(self) -> None:
        """Records that the members of an epoch have connected."""
        self._tries = 0
        self._control.shown["closed"] = []

    def check(self, epoch: Epoch, step: int) -> None:
        """Checks the ports of an epoch that was lost while its members connected.

        Raises InputError or CutOff if a closed port will prevent every further epoch too.
        """
        other_indices = [member.index for member in epoch.members if member != self._me]
        statuses = self._peers.look(other_indices)
        closed_ports = self._find_closed_ports(statuses)
        self._control.shown["closed"] = sorted(closed_ports)
        closed_by_member = {self._me.index: set(closed_ports)}
        for index, status in statuses.items():
            closed_by_member[index] = _read_closed(status)
        reaches_none = bool(closed_ports) and len(closed_ports) == len(other_indices)
        # A member that reaches another one continues without the unreachable one.
        is_blocked = reaches_none or gives_way(self._me.index, closed_by_member)
        # With other members the count starts again: the closed port may have been that of a member
        # that left.
        if epoch.members != self._members or not is_blocked:
            self._tries = 0
        self._tries += is_blocked
        self._members = epoch.members
        if self._tries < TRIES:
            return
        error = make_unreachable_error(self._peers, self._me.index, closed_ports)
        # If the others do not reach each other either, a restart on another node would fail the
        # same way.
        if all(set(other_indices) - {index} <= closed_by_member[index] for index in statuses):
            raise error
        raise CutOff(max(0, step), str(error))

    def _find_closed_ports(self, statuses: Mapping[int, Mapping[str, Any]]) -> dict[int, int]:
        """Returns the first closed port of each member that answers and has one, by index."""
        ports = dict[int, list[int]]()
        for index, status in statuses.items():
            probe_port = int(str(status.get("ear", 0)))
            ports[index] = [*self._peers.stores[index], probe_port]
        with ThreadPoolExecutor(max_workers=16, thread_name_prefix="gang-ports") as pool:
            closed = list(pool.map(self._find_closed_port, ports, ports.values()))
        return {index: port for index, port in zip(ports, closed, strict=True) if port}

    def _find_closed_port(self, index: int, ports: Sequence[int]) -> int:
        """Returns the first closed port, or 0 if all are open."""
        host, _ = self._peers.addresses[index]
        for port in ports:
            if port and not _can_connect(host, port):
                return port
        return 0


def make_unreachable_error(
    peers: Peers,
    me: int,
    closed_ports: Mapping[int, int],
) -> InputError:
    """`closed_ports` has a port of each member that is alive and closed from here, by index."""
    findings = list[str]()
    for index, port in closed_ports.items():
        host, _ = peers.addresses[index]
        findings.append(f"member {index} is alive, and {host}:{port} is closed from here")
    if not findings:
        findings.append("other members cannot reach the ports of this one")
    # In a large gang a policy closes hundreds of ports, for one reason.
    reported = findings[:MAX_REPORTED]
    _, port = peers.addresses[me]
    return InputError(
        "members of the gang cannot reach each other",
        got=f"on member {me}: " + "; ".join(reported),
        allowed=(
            f"TCP from each pod of the Job to every other: ports {port} and {port + 1} of a"
            " process, and those that gloo and NCCL use, 1024 to 65535"
        ),
        fix=(
            "open 1024 to 65535 between the Job's own pods, ingress and egress, in the"
            " NetworkPolicy that selects them (`kubectl get networkpolicy`; a rendered job has one"
            " of the same name) or in the nodes' firewall; rule HF155 of `holdfast lint` finds a"
            " policy that closes them"
        ),
    )


def _can_connect(host: str, port: int) -> bool:
    with suppress(OSError):
        socket.create_connection((host, port), timeout=PROBE_S).close()
        return True
    return False


def _read_closed(status: Mapping[str, object]) -> set[int]:
    """Returns the members with a port that is closed for the sender of `status`."""
    closed = status.get("closed")
    if not isinstance(closed, list):
        return set()
    return {index for index in closed if isinstance(index, int)}


def gives_way(me: int, closed_by_member: Mapping[int, set[int]]) -> bool:
    """Returns whether member `me` leaves because of a closed port.

    If there is a closed port between two members, in either direction, the one with more such
    neighbors leaves; if they have equally many, the one with the higher index does.
    `closed_by_member` maps each member to those that it found closed.
    """
    neighbors = {index: set(closed) for index, closed in closed_by_member.items()}
    for index, closed in closed_by_member.items():
        for other in closed:
            if other in neighbors:
                neighbors[other].add(index)
    my_priority = (len(neighbors[me]), me)
    for other in neighbors[me]:
        other_priority = (len(neighbors.get(other, ())), other)
        if my_priority > other_priority:
            return True
    return False
