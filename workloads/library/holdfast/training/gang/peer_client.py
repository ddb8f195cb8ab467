"""How a gang member asks the others, which answer as `control.py` says."""

import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from queue import Empty, SimpleQueue
from typing import Any

from holdfast.runtime import logs
from holdfast.training.gang.member_addresses import Address
from holdfast.training.gang.member_server import NONCE_HEADER, SEAL_HEADER, seal
from holdfast.training.gang.membership import Epoch, Member
from holdfast.vocabulary.environment import ENV_KEY_FILE

PROBE_S = 1.0
"""For a machine to take a connection: its kernel does that, however busy its processors are."""
ANSWER_S = 30.0
"""For a process to answer on a connection that its machine took; longer than any process is waited
for.
"""
MACHINE_S = 3
"""After which a machine that acknowledges nothing ends a question; whole seconds, as the kernel
counts.
"""
SURVEY_S = PROBE_S + 0.25
"""At most for a survey: by then a machine that takes no connection has shown it."""
MOST_AT_ONCE = 64
MAX_ANSWER = 1 << 20
"""The epoch of the largest gang."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    answers: dict[int, dict[str, Any]]
    """The status of each place that answered."""
    unanswered: frozenset[int]
    """Places whose machine took the question and whose process has not answered yet: it may be
    starved of processor time.
    """
    unknown: frozenset[int] = frozenset()
    """Places that this process had no time to ask. All others that did not answer are gone or
    cannot be reached.
    """


@dataclass(kw_only=True, slots=True)
class _Question:
    place: int
    answer: "Future[dict[str, Any] | None]"
    taken: bool = False
    """By the other machine."""
    ended_at: float = 0.0

    def connected(self) -> None:
        self.taken = True


class Peers:
    """The other members, by their place in the Job."""

    def __init__(self, places: tuple[Address, ...], key: bytes, *, ranks: int = 1) -> None:
        """`ranks`: places of each member, which are neighbours."""
        self.addresses = places[::ranks]
        self._key = key
        self.stores = [
            [port + 1 for _, port in places[at : at + ranks]] for at in range(0, len(places), ranks)
        ]
        """Of each member the ports at which groups meet."""
        self._refusing: set[int] = set()
        self._lock = threading.Lock()
        self._questions: dict[int, _Question] = {}
        """By place: those that are under way, or whose answer nobody has taken yet."""

    def ask(
        self,
        place: int,
        path: str,
        timeout_s: float,
        *,
        answer_s: float | None = None,
        connected: Callable[[], None] = lambda: None,
        **body: object,
    ) -> dict[str, Any] | None:
        """None: no usable answer in time. `answer_s`: for the answer, where that is another time
        than for the connection; `connected`: called between the two.
        """
        host, port = self.addresses[place]
        connection = HTTPConnection(host, port, timeout=timeout_s)
        try:
            connection.connect()
            connected()
            connection.sock.settimeout(answer_s or timeout_s)
            _end_with_its_machine(connection.sock)
            nonce = secrets.token_hex(16)
            asked = json.dumps(body).encode()
            headers = {
                NONCE_HEADER: nonce,
                SEAL_HEADER: seal(self._key, b"ask", nonce.encode(), path.encode(), asked),
            }
            connection.request("POST", path, asked, headers)
            response = connection.getresponse()
            answer = response.read(MAX_ANSWER)
            sealed = response.getheader(SEAL_HEADER, "")
            if response.status == HTTPStatus.FORBIDDEN and place not in self._refusing:
                self._refusing.add(place)
                logs.warning(
                    "gang",
                    f"place {place} has another key than this process: mount the same secret in"
                    f" every pod ({ENV_KEY_FILE})",
                )
            # The address of a pod that is gone may be a stranger's by now.
            sound = hmac.compare_digest(
                sealed.encode(), seal(self._key, b"answer", nonce.encode(), answer).encode()
            )
            if sound and response.status == HTTPStatus.OK:
                return read_answer(answer)
            return None
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()

    def look(self, places: Collection[int]) -> dict[int, dict[str, Any]]:
        """The status of those that answer, all requested at once."""
        return self.survey(places).answers

    def survey(self, places: Collection[int]) -> Survey:
        """Ask all at once, for at most SURVEY_S. A question that has no answer by then stays open
        for the next survey: a place that always takes a little longer is heard as well.
        """
        with self._lock:
            new = [place for place in places if self._is_to_be_asked(place)]
            self._questions |= {place: _Question(place=place, answer=Future()) for place in new}
            questions = {place: self._questions[place] for place in places}
        self._ask_all([questions[place] for place in new])
        wait([question.answer for question in questions.values()], timeout=SURVEY_S)
        answers: dict[int, dict[str, Any]] = {}
        unanswered = set[int]()
        unknown = set[int]()
        for place, question in questions.items():
            if not question.answer.done():
                (unanswered if question.taken else unknown).add(place)
                continue
            self._taken(question)
            status = question.answer.result()
            if status is not None:
                answers[place] = status
        return Survey(
            answers=answers,
            unanswered=frozenset(unanswered),
            unknown=frozenset(unknown),
        )

    def _is_to_be_asked(self, place: int) -> bool:
        question = self._questions.get(place)
        if question is None:
            return True
        # An answer that nobody took tells of the time when it was given.
        return question.answer.done() and time.monotonic() - question.ended_at > PROBE_S

    def _ask_all(self, questions: list[_Question]) -> None:
        """In daemon threads: a process that ends must not wait for the answer of another one."""
        left = SimpleQueue[_Question]()
        for question in questions:
            left.put(question)
        for _ in questions[:MOST_AT_ONCE]:
            threading.Thread(
                target=self._answer,
                args=(left,),
                name="gang-probe",
                daemon=True,
            ).start()

    def _answer(self, left: SimpleQueue[_Question]) -> None:
        with suppress(Empty):
            while True:
                question = left.get_nowait()
                try:
                    status = self.ask(
                        question.place,
                        "/status",
                        PROBE_S,
                        answer_s=ANSWER_S,
                        connected=question.connected,
                    )
                    question.ended_at = time.monotonic()
                    question.answer.set_result(status)
                except Exception as error:  # noqa: BLE001  # raised where the answer is taken
                    question.answer.set_exception(error)

    def _taken(self, question: _Question) -> None:
        with self._lock:
            if self._questions.get(question.place) is question:
                del self._questions[question.place]

    def answers(self, members: list[Member]) -> dict[Member, dict[str, Any]]:
        """The status of those that live; one that was replaced has another incarnation."""
        return of_members(members, self.look([member.index for member in members]))


def _end_with_its_machine(connection: socket.socket) -> None:
    """Let the kernels watch a connection, so that it ends when its machine is gone while a process
    is waited for.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": 1,
        "TCP_KEEPINTVL": 1,
        "TCP_KEEPCNT": MACHINE_S,
        "TCP_USER_TIMEOUT": 1000 * MACHINE_S,
    }
    for name, value in options.items():
        with suppress(AttributeError):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def of_members(
    members: Iterable[Member], answers: Mapping[int, dict[str, Any]]
) -> dict[Member, dict[str, Any]]:
    """Leaves out the answers of processes that have replaced a member."""
    found = ((member, answers.get(member.index, {})) for member in members)
    return {
        member: answer
        for member, answer in found
        if answer.get("incarnation") == member.incarnation
    }


def read_answer(data: bytes) -> dict[str, Any] | None:
    """None: not what a member answers."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def epoch_of(answer: Mapping[str, Any] | None) -> Epoch | None:
    try:
        if answer and answer.get("epoch"):
            return Epoch.from_json(answer["epoch"])
        return None
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
