"""Silence is judged by what a member and its observer could have done: starved processes are waited
for.
"""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import cast

import pytest

from holdfast.checkpoint.stores import LocalStorage
from holdfast.training.gang.failure_detector import PATIENCE, FailureDetector
from holdfast.training.gang.liveness import Lag
from holdfast.training.gang.member_server import Control
from holdfast.training.gang.membership import Epoch, Member
from holdfast.training.gang.peer_client import Peers, Survey, _set_keepalive
from holdfast.training.gang.regroup import Regroup
from workloads.library.tests.processes import until
from workloads.library.tests.training.elastic.gangs import free_ports

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SILENT_S = 3.0
ANSWERED = Survey(answers={1: {}}, unanswered=frozenset())
GONE = Survey(answers={}, unanswered=frozenset())
UNANSWERED = Survey(answers={}, unanswered=frozenset({1}))
UNASKED = Survey(
    answers={},
    unanswered=frozenset(),
    unknown=frozenset({1}),
)
LOCAL = "127.0.0.1"
EPOCH = Epoch(
    number=1, members=tuple(Member(index=place, incarnation=f"p{place}") for place in range(2))
)


class Played:
    """Peers whose surveys are given, and a clock that each survey moves on."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._next = ANSWERED
        self.detector = FailureDetector(
            cast(Peers, self),
            [1],
            silent_s=SILENT_S,
            now=lambda: self.now_s,
        )

    def survey(self, places: list[int]) -> Survey:
        assert places == [1]
        return self._next

    def hears(self, survey: Survey, *, after_s: float) -> bool:
        """Returns whether the member counts as lost after this survey."""
        self._next = survey
        self.now_s = self.now_s + after_s
        self.detector.survey()
        return 1 in self.detector.silent

    def rounds_until_lost(self, survey: Survey, *, each_s: float) -> int:
        return next(number for number in range(1, 1000) if self.hears(survey, after_s=each_s))


def test_unreachable_machine_is_lost_after_the_short_limit() -> None:
    played = Played()
    assert not played.hears(ANSWERED, after_s=0.25)
    assert played.rounds_until_lost(GONE, each_s=0.25) == SILENT_S / 0.25
    assert not played.hears(ANSWERED, after_s=0.25)


@pytest.mark.parametrize("survey", [UNANSWERED, UNASKED])
def test_process_on_a_reachable_machine_has_the_long_limit(survey: Survey) -> None:
    played = Played()
    assert played.rounds_until_lost(survey, each_s=1.25) == PATIENCE * SILENT_S / 1.25
    assert played.rounds_until_lost(survey, each_s=1.25) == 1, "it stays lost until it answers"
    assert not played.hears(ANSWERED, after_s=0.25)


@pytest.mark.parametrize("survey", [GONE, UNANSWERED])
def test_observer_that_was_not_scheduled_does_not_blame_others(survey: Survey) -> None:
    played = Played()
    assert not played.hears(survey, after_s=600.0)
    assert not played.hears(survey, after_s=0.25), (
        "only time in which this process could hear counts"
    )
    assert not played.hears(ANSWERED, after_s=0.25)


def test_silence_before_the_first_survey_is_capped() -> None:
    played = Played()
    played.detector = FailureDetector(
        cast(Peers, played),
        [1],
        silent_s=SILENT_S,
        initial_silence_s=600.0,
        now=lambda: played.now_s,
    )
    assert not played.hears(GONE, after_s=0.25)
    assert not played.hears(GONE, after_s=0.25)


def test_one_failed_connection_after_a_long_silence_is_not_a_loss() -> None:
    played = Played()
    for _ in range(8):
        assert not played.hears(UNANSWERED, after_s=1.25)
    assert not played.hears(GONE, after_s=0.25)
    assert not played.hears(UNANSWERED, after_s=0.25)
    assert not played.hears(GONE, after_s=0.25)
    assert played.hears(GONE, after_s=0.25), "a process that died after it was starved"


def test_failed_connections_are_carried_over_to_the_next_detector() -> None:
    """Each question to an unreachable machine takes a second while a gang waits."""
    played = Played()
    while not played.hears(GONE, after_s=1.0):
        pass
    played.detector = FailureDetector(
        cast(Peers, played),
        [1],
        silent_s=SILENT_S,
        predecessor=played.detector,
        now=lambda: played.now_s,
    )
    assert played.hears(GONE, after_s=1.0)


def test_silence_is_carried_over_to_the_next_detector() -> None:
    played = Played()
    for _ in range(11):
        assert not played.hears(UNANSWERED, after_s=1.25)
    played.detector = FailureDetector(
        cast(Peers, played),
        [1],
        silent_s=SILENT_S,
        predecessor=played.detector,
        now=lambda: played.now_s,
    )
    assert played.hears(UNANSWERED, after_s=1.25)


MEMBER = """
import sys, time
from holdfast.training.gang.member_server import Control
from holdfast.training.gang.membership import Member
control = Control(Member(index=0, incarnation="p0"), int(sys.argv[1]), b"run")
print("up", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def member() -> Iterator[tuple[subprocess.Popen[str], Peers]]:
    """Yields a process that answers, and the client that asks it."""
    (port,) = free_ports(1)
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            MEMBER,
            str(port),
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        try:
            yield process, Peers(((LOCAL, port),), b"run")
        finally:
            process.kill()


def test_stopped_process_is_waited_for_and_its_late_answer_is_taken(
    member: tuple[subprocess.Popen[str], Peers],
) -> None:
    process, peers = member
    detector = FailureDetector(peers, [0], silent_s=0.5)
    until(lambda: 0 in detector.survey())
    process.send_signal(signal.SIGSTOP)
    until(lambda: not detector.survey())
    assert detector.unanswered == {0}
    assert not detector.silent
    process.send_signal(signal.SIGCONT)
    until(lambda: 0 in detector.survey())
    assert not detector.silent
    process.send_signal(signal.SIGSTOP)
    until(lambda: not detector.survey() and detector.silent)
    assert "although its machine does" in detector.silent[0]
    process.kill()
    # A killed process is not waited for.
    until(lambda: not detector.survey() and not detector.unanswered)


def test_question_is_watched_by_the_kernels() -> None:
    """The question must end when the machine is gone, although a slow process is waited for."""
    with (
        socket.create_server((LOCAL, 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        _set_keepalive(client)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * SILENT_S
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1


class Counted(Peers):
    """Notes each survey that has missed an answer."""

    missed = 0

    def survey(self, places: list[int]) -> Survey:
        survey = super().survey(places)
        self.missed += bool(survey.unanswered)
        return survey


@pytest.mark.parametrize("me", [0, 1])
def test_member_that_is_starved_during_a_regrouping_stays_in_the_gang(
    tmp_path: Path, me: int
) -> None:
    addresses = tuple((LOCAL, port) for port in free_ports(2))
    with ExitStack() as stack:
        controls = []
        for member in EPOCH.members:
            controls.append(
                stack.enter_context(closing(Control(member, addresses[member.index][1], b"run")))
            )
        for control in controls:
            control.enter(EPOCH, "member")
            control.lose(EPOCH)
        storage = LocalStorage.open(str(tmp_path))
        limits = {
            "min_members": 1,
            "gather_s": 0.0,
            "hold_s": 0.0,
            "stop_asked": threading.Event().is_set,
        }
        peers = [Counted(addresses, b"run") for _ in controls]
        members = []
        for control, peer in zip(controls, peers, strict=True):
            members.append(Regroup(storage, "run", control, peer, Lag(60.0), **limits))
        pool = ThreadPoolExecutor(max_workers=2)
        starved = controls[1 - me]
        # like a process that gets no CPU time: its machine accepts, and nothing answers
        with starved._changed:
            first = pool.submit(members[me].find_next, EPOCH)
            until(lambda: peers[me].missed >= 2 or first.done())
            assert not first.done(), first.result()
        second = pool.submit(members[1 - me].find_next, EPOCH)
        expected = Epoch(number=2, members=EPOCH.members)
        assert [first.result(timeout=60), second.result(timeout=60)] == [expected, expected]


def test_newcomer_creates_no_gang_next_to_a_starved_one(tmp_path: Path) -> None:
    addresses = tuple((LOCAL, port) for port in free_ports(2))
    with ExitStack() as stack:
        controls = []
        for member in EPOCH.members:
            controls.append(
                stack.enter_context(closing(Control(member, addresses[member.index][1], b"run")))
            )
        at_work = Epoch(number=1, members=EPOCH.members[:1])
        controls[0].enter(at_work, "member")
        peers = Counted(addresses, b"run")
        over = threading.Event()
        storage = LocalStorage.open(str(tmp_path))
        limits = {
            "min_members": 1,
            "gather_s": 0.0,
            "hold_s": 600.0,
            "stop_asked": over.is_set,
        }
        newcomer = Regroup(storage, "run", controls[1], peers, Lag(60.0), **limits)
        pool = ThreadPoolExecutor(max_workers=1)
        with controls[0]._changed:
            joined = pool.submit(newcomer.join)
            until(lambda: peers.missed >= 2 or joined.done())
            assert not joined.done(), joined.result()
        until(lambda: 1 in controls[0].get_joiners())
        controls[0].enter(Epoch(number=2, members=EPOCH.members), "member")
        assert joined.result(timeout=60).number == 2
