"""No member waits forever for one that lives and cannot be reached, as behind a closed port."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.checkpoint.errors import Preempted
from holdfast.checkpoint.stores import LocalStorage
from holdfast.support.errors import InputError
from holdfast.training.errors import CutOff
from holdfast.training.gang import peer_client
from holdfast.training.gang.liveness import Lag
from holdfast.training.gang.member_addresses import Address
from holdfast.training.gang.member_server import Control
from holdfast.training.gang.membership import Epoch, Member
from holdfast.training.gang.peer_client import Peers
from holdfast.training.gang.reachability import TRIES, Reachability, gives_way
from holdfast.training.gang.regroup import Regroup
from holdfast.training.tcp_gate import _Relay
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT, EXIT_COMPLETE, EXIT_RETRY
from workloads.library.tests.training.elastic.conftest import Make
from workloads.library.tests.training.elastic.gangs import Gang, free_ports

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

LOCAL = "127.0.0.1"
TEXT = "members of the gang cannot reach each other"
EARLY = {"connect_s": 2.0, "gate_step": 1}
"""Connecting is given up early: that a port is closed is counted, and not timed."""


class Door(_Relay):
    """A way to a member by which only its control port is reached."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.asked = 0
        self.address = (LOCAL, free_ports(1)[0])
        # A client of the port above gets no answer, as a policy drops packets.
        full = socket.create_server((LOCAL, self.address[1] + 1), backlog=0)
        self._held = [full, *(socket.socket() for _ in range(3))]
        for waiting in self._held[1:]:
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        super().__init__(socket.create_server(self.address), b"")

    async def _open_outbound(
        self, inbound: object
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.asked += 1
        return await asyncio.open_connection(LOCAL, self._target)

    def close(self) -> None:
        super().close()
        for connection in self._held:
            connection.close()


@pytest.fixture
def door() -> Iterator[Callable[[Address], Door]]:
    with contextlib.ExitStack() as opened:
        yield lambda address: opened.enter_context(contextlib.closing(Door(address[1])))


def start(gang: Gang, place: int, instead: dict[int, Door]) -> None:
    """Starts the processes with other addresses for some places."""
    nodes = []
    for n, address in enumerate(gang.addresses):
        nodes.append(instead[n].address if n in instead else address)
    gang.start(place, nodes=nodes)


def test_a_gang_whose_data_ports_are_closed_ends_and_says_which(
    make: Make, door: Callable[[Address], Door]
) -> None:
    gang = make(
        nodes=2,
        min_nodes=2,
        hold_s=5.0,
        gather_s=30.0,
        **EARLY,
    )
    ways = [door(address) for address in gang.addresses]
    for place in range(2):
        start(gang, place, {1 - place: ways[1 - place]})
    codes = gang.all_ended()
    # The first fails the Job. The other may find it gone.
    assert {EXIT_BAD_INPUT} <= {*codes} <= {EXIT_BAD_INPUT, EXIT_RETRY}, gang.logs()
    first = codes.index(EXIT_BAD_INPUT)
    assert TEXT in gang.read_log(first), gang.logs()
    assert f"{LOCAL}:{ways[1 - first].address[1] + 1} is closed" in gang.read_log(first)
    assert not gang.committed()


def test_newcomer_that_reaches_no_member_leaves_the_gang_at_work(
    make: Make, door: Callable[[Address], Door]
) -> None:
    gang = make(nodes=3, min_nodes=2, gather_s=1.0, steps=3, **EARLY)
    ways = [door(address) for address in gang.addresses]
    for place in (0, 1):
        start(gang, place, {2: ways[2]})
    gang.until(lambda: gang.sizes() == [2])
    start(gang, 2, {0: ways[0], 1: ways[1]})
    # If it came before the first step was done, it may have left by now.
    gang.until(lambda: gang.joining(2) or gang.processes[2].poll() is not None)
    gang.open_gate()
    assert gang.all_ended() == [EXIT_COMPLETE, EXIT_COMPLETE, EXIT_RETRY], gang.logs()
    assert TEXT in gang.read_log(2)


def test_ports_that_the_system_chooses_are_tried_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo and NCCL meet there: a policy that opens the two known ports alone is not enough."""
    monkeypatch.setattr(peer_client, "SURVEY_S", 60.0)  # the peer always answers
    members = (Member(index=0, incarnation="a"), Member(index=1, incarnation="b"))
    addresses = tuple((LOCAL, port) for port in free_ports(2))
    with contextlib.ExitStack() as closing:
        control, peer = (Control(member, addresses[member.index][1], b"s") for member in members)
        closing.callback(control.close)
        closing.callback(peer.close)
        peer._probe_socket.close()
        closing.enter_context(socket.create_server((LOCAL, addresses[1][1] + 1)))
        reachability = Reachability(control, Peers(addresses, b"s"))
        epoch = Epoch(number=1, members=members)
        for _ in range(TRIES - 1):
            reachability.check(epoch, 0)
        with pytest.raises(InputError, match=f"{LOCAL}:{peer.probe_port} is closed") as end:
            reachability.check(epoch, 0)
    assert "NetworkPolicy" in end.value.fix
    assert "1024 to 65535" in end.value.allowed


def test_a_newcomer_that_the_lead_cannot_ask_back_leaves_and_says_why(tmp_path: Path) -> None:
    lead, asks, closed = ((LOCAL, port) for port in free_ports(3))
    storage = LocalStorage.open(str(tmp_path))
    limits = {
        "min_members": 2,
        "gather_s": 60.0,
        "hold_s": 60.0,
    }
    noticed = threading.Event()
    regroups = list[Regroup]()
    with contextlib.ExitStack() as closing:
        for place, ways in enumerate([(lead, closed), (lead, asks)]):
            control = Control(
                Member(index=place, incarnation=f"p{place}"), (lead, asks)[place][1], b"s"
            )
            closing.callback(control.close)
            peers = Peers(ways, b"s")
            regroups.append(
                Regroup(
                    storage, "run", control, peers, Lag(2.0), stop_asked=noticed.is_set, **limits
                )
            )
        founding = ThreadPoolExecutor(max_workers=1).submit(regroups[0].join)
        with pytest.raises(CutOff) as end:
            regroups[1].join()
        noticed.set()
        assert isinstance(founding.exception(60), Preempted), "the lead waits on for others"
    assert end.value.code == EXIT_RETRY
    assert TEXT in end.value.reason
    assert "on member 1: other members cannot reach" in end.value.reason


@pytest.mark.parametrize(
    ("closed", "leave"),
    [
        ([{2}, {}, {}], {2}),
        ([{}, {}, {0}], {2}),
        # The node that reaches no other, or that no other reaches, leaves; the others stay.
        ([{1, 2}, {}, {}], {0}),
        ([{}, {0}, {0}], {0}),
        (
            [
                {},
                {3},
                {},
                {0},
            ],
            {3},
        ),
        ([{}, {}, {}], set()),
    ],
)
def test_member_with_more_closed_ports_gives_way(closed: list[set[int]], leave: set[int]) -> None:
    bars = {}
    for place, unreachable in enumerate(closed):
        bars[place] = {*unreachable}
    assert {place for place in bars if gives_way(place, bars)} == leave
