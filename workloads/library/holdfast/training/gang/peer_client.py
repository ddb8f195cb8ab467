"""Asks the other members of a gang, which answer as described in member_server.py."""

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
from holdfast.training.gang.member_server import (
    CHALLENGE_BYTES,
    CHALLENGE_PATH,
    NONCE_HEADER,
    SEAL_HEADER,
    seal,
)
from holdfast.training.gang.membership import Epoch, Member
from holdfast.vocabulary.environment import ENV_KEY_FILE

PROBE_S = 1.0
"""Seconds for a machine to accept a connection: its kernel does that, however busy it is."""
ANSWER_S = 30.0
"""Seconds for a process to answer on an accepted connection; longer than any process is waited for.
"""
MACHINE_S = 3
"""Whole seconds without an acknowledgment from the machine after which a question fails."""
SURVEY_S = PROBE_S + 0.25
"""Longest time of a survey: by then it is clear which machines accept no connection."""
MAX_THREADS = 64
MAX_ANSWER_BYTES = 1 << 20
"""Enough for the epoch of the largest gang."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Result of asking several members for their status."""

    answers: dict[int, dict[str, Any]]
    """Status of each member that answered, by index."""
    unanswered: frozenset[int]
    """Members whose machine accepted the connection and whose process has not answered yet: it may
    be starved of processor time.
    """
    unknown: frozenset[int] = frozenset()
    """Members that this process had no time to ask. All others that did not answer are lost or
    cannot be reached.
    """


@dataclass(kw_only=True, slots=True)
class _Question:
    place: int
    answer: "Future[dict[str, Any] | None]"
    is_accepted: bool = False
    """True once the other machine has accepted the connection."""
    answer_time: float = 0.0

    def accept(self) -> None:
        self.is_accepted = True


class Peers:
    """Client of the members of the Job, by index."""

    def __init__(
        self,
        places: tuple[Address, ...],
        key: bytes,
        *,
        ranks: int = 1,
    ) -> None:
        """`places` has the address of each process, `ranks` consecutive ones for each member."""
        self.addresses = places[::ranks]
        self._key = key
        self.stores: list[list[int]] = []
        """Ports of each member's stores, by index."""
        for start in range(0, len(places), ranks):
            processes = places[start : start + ranks]
            self.stores.append([port + 1 for _, port in processes])
        self._rejecting: set[int] = set()
        """Members that have another key, for which a warning was logged."""
        self._lock = threading.Lock()
        self._questions: dict[int, _Question] = {}
        """Open questions, and those whose answer was not read yet, by index."""

    def ask(
        self,
        place: int,
        path: str,
        timeout_s: float,
        *,
        answer_s: float | None = None,
        on_accept: Callable[[], None] = lambda: None,
        **body: object,
    ) -> dict[str, Any] | None:
        """Returns the answer, or None if no usable one came in time.

        `timeout_s` limits the connection, and the answer too unless `answer_s` is given.
        `on_accept` is called once the machine has accepted the connection.
        """
        host, port = self.addresses[place]
        connection = HTTPConnection(host, port, timeout=timeout_s)
        nonce = secrets.token_hex(16)
        content = json.dumps(body).encode()
        try:
            connection.connect()
            on_accept()
            connection.sock.settimeout(answer_s or timeout_s)
            _set_keepalive(connection.sock)
            connection.request("GET", CHALLENGE_PATH)
            challenge = connection.getresponse().read(CHALLENGE_BYTES)
            question_seal = seal(
                self._key,
                b"ask",
                challenge,
                nonce.encode(),
                path.encode(),
                content,
            )
            headers = {NONCE_HEADER: nonce, SEAL_HEADER: question_seal}
            connection.request("POST", path, content, headers)
            response = connection.getresponse()
            answer = response.read(MAX_ANSWER_BYTES)
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()
        if response.status == HTTPStatus.FORBIDDEN:
            self._report_key_mismatch(place)
        if response.status != HTTPStatus.OK:
            return None
        # The address of a lost pod may belong to a stranger by now.
        answer_seal = response.getheader(SEAL_HEADER, "")
        expected_seal = seal(
            self._key,
            b"answer",
            nonce.encode(),
            answer,
        )
        if not hmac.compare_digest(answer_seal.encode(), expected_seal.encode()):
            return None
        return read_answer(answer)

    def _report_key_mismatch(self, place: int) -> None:
        if place in self._rejecting:
            return
        self._rejecting.add(place)
        logs.warning(
            "gang",
            f"member {place} has another key than this process: mount the same secret in"
            f" every pod ({ENV_KEY_FILE})",
        )

    def look(self, places: Collection[int]) -> dict[int, dict[str, Any]]:
        """Returns the status of the members that answer, by index. All are asked at once."""
        return self.survey(places).answers

    def survey(self, places: Collection[int]) -> Survey:
        """Asks all members at once, for at most SURVEY_S.

        A question without an answer by then stays open for the next survey, so that a member which
        always takes a little longer is heard too.
        """
        new_questions = list[_Question]()
        questions = dict[int, _Question]()
        with self._lock:
            for place in places:
                if self._needs_question(place):
                    question = _Question(place=place, answer=Future())
                    self._questions[place] = question
                    new_questions.append(question)
                questions[place] = self._questions[place]
        self._ask_all(new_questions)
        futures = [question.answer for question in questions.values()]
        wait(futures, timeout=SURVEY_S)
        answers: dict[int, dict[str, Any]] = {}
        unanswered = set[int]()
        unknown = set[int]()
        for place, question in questions.items():
            if question.answer.done():
                self._close(question)
                status = question.answer.result()
                if status is not None:
                    answers[place] = status
            elif question.is_accepted:
                unanswered.add(place)
            else:
                unknown.add(place)
        return Survey(
            answers=answers,
            unanswered=frozenset(unanswered),
            unknown=frozenset(unknown),
        )

    def _needs_question(self, place: int) -> bool:
        question = self._questions.get(place)
        if question is None:
            return True
        # An answer that was not read describes the past.
        age_s = time.monotonic() - question.answer_time
        return question.answer.done() and age_s > PROBE_S

    def _ask_all(self, questions: list[_Question]) -> None:
        """Asks in daemon threads: a process that exits must not wait for another one's answer."""
        queue = SimpleQueue[_Question]()
        for question in questions:
            queue.put(question)
        for _ in questions[:MAX_THREADS]:
            threading.Thread(
                target=self._ask_from,
                args=(queue,),
                name="gang-probe",
                daemon=True,
            ).start()

    def _ask_from(self, queue: SimpleQueue[_Question]) -> None:
        while True:
            try:
                question = queue.get_nowait()
            except Empty:
                return
            try:
                status = self.ask(
                    question.place,
                    "/status",
                    PROBE_S,
                    answer_s=ANSWER_S,
                    on_accept=question.accept,
                )
                question.answer_time = time.monotonic()
                question.answer.set_result(status)
            except Exception as error:  # noqa: BLE001  # raised by the survey that reads the answer
                question.answer.set_exception(error)

    def _close(self, question: _Question) -> None:
        with self._lock:
            if self._questions.get(question.place) is question:
                del self._questions[question.place]

    def look_at_members(self, members: list[Member]) -> dict[Member, dict[str, Any]]:
        """Returns the status of the members that live; a replacement has another incarnation."""
        statuses = self.look([member.index for member in members])
        return select_members(members, statuses)


def _set_keepalive(connection: socket.socket) -> None:
    """Lets the kernel end a connection whose machine was lost while its process is waited for."""
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


def select_members(
    members: Iterable[Member], answers: Mapping[int, dict[str, Any]]
) -> dict[Member, dict[str, Any]]:
    """Returns the answers of `members`, without those of processes that have replaced one."""
    selection = dict[Member, dict[str, Any]]()
    for member in members:
        answer = answers.get(member.index, {})
        if answer.get("incarnation") == member.incarnation:
            selection[member] = answer
    return selection


def read_answer(data: bytes) -> dict[str, Any] | None:
    """Parses an answer. Returns None if no member would send it."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def parse_epoch(answer: Mapping[str, Any] | None) -> Epoch | None:
    """Returns the epoch that an answer names, or None if it names none or no valid one."""
    body = (answer or {}).get("epoch")
    if not body:
        return None
    try:
        return Epoch.from_json(body)
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
