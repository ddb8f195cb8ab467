"""Members that live and cannot reach each other: a policy closes a port of theirs. Nobody waits for ever."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from holdfast.contract.errors import InputError
from holdfast.contract.exit_codes import EXIT_BAD_INPUT, EXIT_COMPLETE, EXIT_RETRY
from holdfast.training.elastic.asking import Peers
from holdfast.training.elastic.control import Control
from holdfast.training.elastic.membership import Epoch, Member
from holdfast.training.elastic.reach import TRIES, Reach, cut_off, gives_way
from holdfast.training.elastic.signs import Sign
from workloads.library.tests.training.elastic.conftest import Make
from workloads.library.tests.training.elastic.gangs import Gang, free_ports

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

LOCAL = "127.0.0.1"
TEXT = "members of the gang cannot reach each other"
Address = tuple[str, int]


@pytest.fixture
def make(make: Make) -> Make:
    """Connecting is given up early: that a port is closed is counted, and not timed."""
    return partial(make, connect_s=2.0, gather_s=4.0, gate_step=1)


class Doors:
    """Ways to a member by which only its control port is reached."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self.joins = 0
        """How often somebody asked to come in."""

    def to(self, port: int, *, silent: bool) -> Address:
        """The port above is refused; or, `silent`, whoever connects there hears nothing, as a policy drops packets."""
        (door,) = free_ports(1)
        listening = self._open.enter_context(socket.create_server((LOCAL, door)))
        threading.Thread(target=self._forward, args=(listening, port), daemon=True).start()
        if silent:
            full = self._open.enter_context(socket.create_server((LOCAL, door + 1), backlog=0))
            for _ in range(3):
                waiting = self._open.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
        return LOCAL, door

    def _forward(self, listening: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                coming, _ = listening.accept()
                threading.Thread(target=self._answered, args=(coming, port), daemon=True).start()

    def _answered(self, coming: socket.socket, port: int) -> None:
        with coming, contextlib.suppress(OSError), socket.create_connection((LOCAL, port)) as going:
            threading.Thread(target=self._pump, args=(coming, going), daemon=True).start()
            self._pump(going, coming)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.joins += data.startswith(b"POST /join")
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def doors() -> Iterator[Doors]:
    doors = Doors()
    yield doors
    doors.close()


def start(gang: Gang, place: int, instead: dict[int, Address]) -> None:
    """With other ways to some places."""
    nodes = gang.settings["nodes"]
    gang.settings["nodes"] = [instead.get(other, address) for other, address in enumerate(nodes)]
    gang.start(place)
    gang.settings["nodes"] = nodes


def log_of(gang: Gang, place: int) -> str:
    return (gang.folder / f"log-{place}").read_text()


@pytest.mark.parametrize("silent", [False, True])
def test_a_gang_whose_data_ports_are_closed_ends_and_says_which(make: Make, doors: Doors, silent: bool) -> None:
    # At a gate, one that was not answered in time on a busy machine would stand alone, and never take the other in.
    gang = make(nodes=2, gate_step=-2, pace_s=0.05, steps=100_000, every=100_000)
    nodes = gang.settings["nodes"]
    ways = {place: doors.to(nodes[place][1], silent=silent) for place in range(2)}
    for place in range(2):
        start(gang, place, {1 - place: ways[1 - place]})
    assert gang.all_ended() == {0: EXIT_BAD_INPUT, 1: EXIT_BAD_INPUT}, gang.logs()
    assert all(TEXT in log_of(gang, place) for place in range(2)), gang.logs()
    assert any(f"{LOCAL}:{ways[1 - place][1] + 1} is closed" in log_of(gang, place) for place in range(2))
    assert not gang.committed()


@pytest.mark.parametrize("least", [1, 2])
def test_members_that_cannot_even_ask_each_other_learn_it_from_the_storage(make: Make, least: int) -> None:
    """With one as the least the first founds a gang of its own meanwhile: the other finds it at work."""
    gang = make(nodes=2, min_nodes=least, signs_s=0.5)
    nowhere = [(LOCAL, port) for port in free_ports(2)]
    start(gang, 0, {1: nowhere[1]})
    if least == 1:
        gang.until(lambda: gang.sizes() == [1])
    start(gang, 1, {0: nowhere[0]})
    assert gang.ended(1) == EXIT_BAD_INPUT, gang.logs()
    assert TEXT in log_of(gang, 1)
    if least == 2:
        assert gang.ended(0) == EXIT_BAD_INPUT, gang.logs()
    assert any(f"{LOCAL}:{nowhere[other][1]} is closed" in log_of(gang, 1 - other) for other in (0, least - 1))


def test_a_newcomer_on_a_node_that_reaches_nobody_leaves_the_gang_at_work(make: Make, doors: Doors) -> None:
    gang = make(nodes=3, min_nodes=2, gather_s=1.0, steps=3)
    nodes = gang.settings["nodes"]
    others = {2: doors.to(nodes[2][1], silent=False)}
    for place in (0, 1):
        start(gang, place, others)
    gang.until(lambda: gang.sizes() == [2])
    start(gang, 2, {place: doors.to(nodes[place][1], silent=False) for place in (0, 1)})
    # It asks again when it was answered: by then the lead knows of it, and takes it in before the next step. Where it
    # came before the first step was done, it may have left by now.
    gang.until(lambda: doors.joins > 1 or gang.processes[2].poll() is not None)
    gang.open_gate()
    assert gang.ended(2) == EXIT_RETRY, gang.logs()
    assert TEXT in log_of(gang, 2)
    assert {gang.ended(place) for place in (0, 1)} == {EXIT_COMPLETE}, gang.logs()


def test_ports_that_the_system_chooses_are_tried_as_well() -> None:
    """gloo and NCCL meet there: a policy that opens the two known ports alone is not enough."""
    members = (Member(index=0, incarnation="a"), Member(index=1, incarnation="b"))
    addresses = tuple((LOCAL, port) for port in free_ports(2))
    controls = [Control(member, addresses[member.index][1], b"s") for member in members]
    chosen = controls[1].ear
    controls[1]._ear.close()  # pyright: ignore[reportPrivateUsage]
    reach, epoch = Reach(controls[0], Peers(addresses, b"s")), Epoch(number=1, members=members)
    with socket.create_server((LOCAL, addresses[1][1] + 1)):
        for _ in range(TRIES - 1):
            reach.lost(epoch, 0)
        with pytest.raises(InputError, match=f"{LOCAL}:{chosen} is closed") as end:
            reach.lost(epoch, 0)
    assert "NetworkPolicy" in end.value.fix and "1024 to 65535" in end.value.allowed
    for control in controls:
        control.close()


@pytest.mark.parametrize("deaf", [0, 1])
def test_a_control_port_closed_in_one_direction_ends_a_gang_of_two(make: Make, deaf: int) -> None:
    """The other one answers its questions, and gets no answer to its own."""
    gang = make(nodes=2, min_nodes=2, signs_s=0.5)
    (nowhere,) = free_ports(1)
    start(gang, 1 - deaf, {deaf: (LOCAL, nowhere)})
    start(gang, deaf, {})
    assert gang.all_ended() == {0: EXIT_BAD_INPUT, 1: EXIT_BAD_INPUT}, gang.logs()
    assert f"{LOCAL}:{nowhere} is closed" in log_of(gang, 1 - deaf), gang.logs()
    assert f"place {1 - deaf} is alive, and cannot reach the ports of this one" in log_of(gang, deaf), gang.logs()


@pytest.mark.parametrize("blind", [0, 2])
def test_one_way_closed_between_two_of_three_costs_the_newcomer_alone(make: Make, blind: int) -> None:
    """The lead does not reach the newcomer, or the newcomer does not reach the lead; the third reaches both."""
    gang = make(nodes=3, min_nodes=2, gather_s=1.0, steps=3, signs_s=0.5)
    (nowhere,) = free_ports(1)
    ways: dict[int, dict[int, Address]] = {place: {} for place in range(3)}
    ways[blind] = {2 - blind: (LOCAL, nowhere)}
    for place in (0, 1):
        start(gang, place, ways[place])
    gang.until(lambda: gang.sizes() == [2])
    start(gang, 2, ways[2])
    assert gang.ended(2) == EXIT_RETRY, gang.logs()
    assert TEXT in log_of(gang, 2)
    gang.open_gate()
    assert {gang.ended(place) for place in (0, 1)} == {EXIT_COMPLETE}, gang.logs()
    assert gang.sizes() == [2]


@pytest.mark.parametrize("blind", [0, 2])
def test_one_way_closed_between_two_of_three_at_a_start(make: Make, blind: int) -> None:
    gang = make(nodes=3, min_nodes=2, gather_s=1.0, steps=3, signs_s=0.5)
    (nowhere,) = free_ports(1)
    for place in (2, 1, 0):
        start(gang, place, {2 - blind: (LOCAL, nowhere)} if place == blind else {})
    assert gang.ended(2) == EXIT_RETRY, gang.logs()
    gang.open_gate()
    assert {gang.ended(place) for place in (0, 1)} == {EXIT_COMPLETE}, gang.logs()
    assert TEXT in log_of(gang, 2)


def test_data_ports_closed_in_one_direction_between_two_of_three(make: Make, doors: Doors) -> None:
    gang = make(nodes=3, min_nodes=2, gather_s=60.0, steps=3)
    gang.open_gate()
    nodes = gang.settings["nodes"]
    for place in range(3):
        start(gang, place, {0: doors.to(nodes[0][1], silent=False)} if place == 2 else {})
    assert gang.all_ended() == {0: EXIT_COMPLETE, 1: EXIT_COMPLETE, 2: EXIT_RETRY}, gang.logs()
    assert TEXT in log_of(gang, 2)


@pytest.mark.parametrize(
    ("bars", "leave"),
    [
        ({0: {2}, 1: set(), 2: set()}, {2}),
        ({0: set(), 1: set(), 2: {0}}, {2}),
        # The node that reaches nobody, or that nobody reaches, and not those that reach each other.
        ({0: {1, 2}, 1: set(), 2: set()}, {0}),
        ({0: set(), 1: {0}, 2: {0}}, {0}),
        ({0: set(), 1: {3}, 2: set(), 3: {0}}, {3}),
        ({0: set(), 1: set(), 2: set()}, set()),
    ],
)
def test_of_two_with_a_closed_port_one_gives_way(bars: dict[int, set[int]], leave: set[int]) -> None:
    assert {place for place in bars if gives_way(place, bars)} == leave


def sign(place: int, *reaches: int) -> Sign:
    return Sign(member=Member(index=place, incarnation="a"), number=1, reaches=frozenset(reaches), closed=frozenset())


@pytest.mark.parametrize(
    ("me", "status", "alive", "cut"),
    [
        # 1 does not reach 0 and 2 does: 2 will go to 0.
        (1, {2: {"reaches": [0, 1]}}, {0: sign(0, 2)}, ({0}, set())),
        # Nobody else reaches 0 either: that is its own affair.
        (1, {2: {"reaches": [1]}}, {0: sign(0)}, None),
        (0, {1: {"closed": [0]}, 2: {"closed": [0]}}, {}, (set(), {1, 2})),
        (0, {1: {"closed": [0]}, 2: {"closed": []}}, {}, None),
        # A place above that this one does not reach asks for itself.
        (0, {1: {"reaches": [0, 2]}}, {2: sign(2, 1)}, None),
        (0, {}, {}, None),
    ],
)
def test_who_waits_in_vain(me: int, status: dict[int, Any], alive: dict[int, Sign], cut: object) -> None:
    assert cut_off(me, {me: {}, **status}, alive) == cut
