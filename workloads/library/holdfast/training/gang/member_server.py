"""HTTP server of a gang member, which answers the others: status, reports of a lost group, joins.

Each member has its own small server, so that every question has a time limit; torch's store has
none for a peer that is stopped but not lost. Answers wait at most POLL_S, so a caller checks its
state that often.

A connection carries one question. Its GET gets a random challenge, and the POST that follows has an
HMAC of challenge, nonce, path and body with the run's key. The answer has an HMAC of the same
nonce. So the key is never sent, and neither a recorded question nor a recorded answer is ever
accepted again. Only members of a known epoch may change anything.
"""

import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from holdfast.runtime.bounded_http import BoundedHandler, BoundedServer
from holdfast.training.gang.member_addresses import Address
from holdfast.training.gang.membership import Epoch, Member

POLL_S = 1.0
# Read before the seal is checked: a stranger must not make a member hold more than this.
MAX_BODY = 1 << 12
NONCE_HEADER = "Holdfast-Nonce"
SEAL_HEADER = "Holdfast-Seal"
CHALLENGE_PATH = "/challenge"
CHALLENGE_BYTES = 32
EPOCHS = 8
"""Number of recent epochs for which reports are accepted."""


def seal(key: bytes, *parts: bytes) -> str:
    """Returns the HMAC of a question or an answer, in hexadecimal."""
    return hmac.new(key, b"\0".join(parts), "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class _Join:
    member: Member
    start: float
    """Time of the first question, by time.monotonic()."""


class Control:
    """State that this member shows to others, and their questions.

    `phase` is waiting (in no epoch), restoring, member or complete.
    """

    def __init__(
        self,
        me: Member,
        port: int,
        key: bytes,
    ) -> None:
        """`key` is the join key of the run: without it a stranger could pose as any member."""
        self.me = me
        self.key = key
        self._epochs: dict[int, Epoch] = {}
        """Newest epochs that this member entered, by number."""
        self._changed = threading.Condition()
        self.phase = "waiting"
        self._epoch: Epoch | None = None
        self._reports: dict[int, set[int]] = {}
        """Indices of the members that have lost the group of an epoch, by its number."""
        self._joins: dict[int, _Join] = {}
        """Processes that ask to join, by index."""
        self._unheard: dict[int, tuple[str, int]] = {}
        """Incarnation that asked to join and did not answer, and how often, by index."""
        self.shown: dict[str, int | str | list[int]] = {
            "total": 0,
            "closed": [],
        }
        """Further entries of the status. `total` is the number of steps of the whole training, 0 if
        not known yet. `closed` lists members that live and have a port closed to this one.
        """
        self._lost_epoch = 0
        """Newest epoch whose group this member has lost."""
        # It never accepts: a client that connects learns whether ports that the system chooses are
        # open.
        self._probe_socket = socket.create_server(("", 0), backlog=1024)
        self.probe_port = int(self._probe_socket.getsockname()[1])
        self._server = _Server(("", port), self)
        threading.Thread(
            target=self._server.serve_forever,
            args=(0.1,),
            name="gang-control",
            daemon=True,
        ).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._probe_socket.close()

    def enter(self, epoch: Epoch | None, phase: str) -> None:
        """Sets the epoch and the phase that this member shows."""
        with self._changed:
            self._epoch = epoch
            self.phase = phase
            if epoch:
                self._remember(epoch)
            self._changed.notify_all()

    def _remember(self, epoch: Epoch) -> None:
        self._epochs[epoch.number] = epoch
        # Reports of older epochs no longer matter, and a Job may have very many epochs.
        for number in sorted(self._epochs)[:-EPOCHS]:
            del self._epochs[number]
            self._reports.pop(number, None)
        for member in epoch.members:
            join = self._joins.get(member.index)
            # A replacement may have asked since: it is in no epoch yet, and must stay.
            if join and join.member == member:
                del self._joins[member.index]

    def lose(self, epoch: Epoch) -> None:
        """Shows that this member has lost the group of `epoch`, in which others may still wait."""
        with self._changed:
            self._lost_epoch = epoch.number

    def get_reports(self, epoch: int) -> frozenset[int]:
        """Returns the indices of the members that have lost the group of `epoch`."""
        with self._changed:
            return frozenset(self._reports.get(epoch, ()))

    def get_joiners(self) -> dict[int, Member]:
        """Returns the processes that ask to join, by index."""
        if not self._joins:  # without the lock, as the lead asks in each step
            return {}
        with self._changed:
            return {index: join.member for index, join in self._joins.items()}

    def get_join_wait_s(self) -> float:
        """Returns the seconds since the first question of those that ask to join, 0 if none do."""
        with self._changed:
            starts = [join.start for join in self._joins.values()]
        if not starts:
            return 0.0
        return time.monotonic() - min(starts)

    def forget(self, unreachable: Collection[Member]) -> None:
        """Drops processes that asked to join and do not answer: they were lost again, or their port
        is closed from here.
        """
        with self._changed:
            for member in unreachable:
                incarnation, times = self._unheard.get(member.index, ("", 0))
                if incarnation != member.incarnation:
                    times = 0
                self._unheard[member.index] = (member.incarnation, times + 1)
                join = self._joins.get(member.index)
                if join and join.member == member:
                    del self._joins[member.index]

    def wait(self, timeout_s: float) -> None:
        """Waits until a question changes something."""
        with self._changed:
            self._changed.wait(timeout_s)

    # The server's threads call the methods below.

    def answer(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Answers a question.

        Raises ValueError, KeyError, TypeError or OverflowError if no member would ask it.
        """
        if path == "/status":
            with self._changed:
                return self._make_status()
        sender = Member(
            index=int(body["index"]),
            incarnation=str(body["incarnation"])[:64],
        )
        if path == "/join":
            return self._answer_join(sender)
        if path == "/report":
            return self._answer_report(sender, int(body["epoch"]))
        raise ValueError(f"no such path: {path}")

    def _answer_report(self, sender: Member, number: int) -> dict[str, Any]:
        with self._changed:
            epoch = self._epochs.get(number)
            if epoch and sender in epoch.members:
                self._reports.setdefault(number, set()).add(sender.index)
                self._changed.notify_all()
            return self._await_status(lambda epoch: epoch.number > number)

    def _answer_join(self, sender: Member) -> dict[str, Any]:
        with self._changed:
            join = self._joins.get(sender.index)
            # A process asks each second: the time of its first question stays, or the wait for
            # others would never end.
            if not join or join.member != sender:
                self._joins[sender.index] = _Join(sender, time.monotonic())
                self._changed.notify_all()
            return self._await_status(lambda epoch: sender in epoch.members)

    def _await_status(self, condition: Callable[[Epoch], bool]) -> dict[str, Any]:
        """Returns the status once the epoch meets the condition, at the latest after POLL_S."""

        def is_met() -> bool:
            return self._epoch is not None and condition(self._epoch)

        # The lock is free while it waits, so that other members are answered meanwhile.
        self._changed.wait_for(is_met, POLL_S)
        return self._make_status()

    def _make_status(self) -> dict[str, Any]:
        return {
            **asdict(self.me),
            **self.shown,
            "phase": self.phase,
            "epoch": self._epoch.to_json() if self._epoch else None,
            "ear": self.probe_port,
            "lost": self._lost_epoch,
            "joining": sorted(self._joins),
            "unheard": dict(self._unheard.values()),
        }


class _Server(BoundedServer):
    most = request_queue_size = 1024  # all members of the largest gang at one of them

    def __init__(self, address: Address, control: Control) -> None:
        self.control = control
        super().__init__(address, _Handler)


class _Handler(BoundedHandler):
    protocol_version = "HTTP/1.1"  # the question follows on the connection of its challenge
    disable_nagle_algorithm = True
    most_body = MAX_BODY

    def setup(self) -> None:
        super().setup()
        self._challenge = b""
        """Challenge of this connection that no question has used; empty: there is none."""

    def do_GET(self) -> None:
        if self.path != CHALLENGE_PATH:
            self.send_error(404)
            return
        self._challenge = secrets.token_bytes(CHALLENGE_BYTES)
        # Before the response: the question may come at once, and ends it.
        cast(_Server, self.server).start_reading(self.connection)
        self.send_response(200)
        self.send_header("Content-Length", str(CHALLENGE_BYTES))
        self.end_headers()
        self.wfile.write(self._challenge)

    def do_POST(self) -> None:
        self.close_connection = True
        control = cast(_Server, self.server).control
        nonce = self.headers.get(NONCE_HEADER, "")[:32]
        body = self.body or b""
        question_seal = self.headers.get(SEAL_HEADER, "")
        expected_seal = seal(
            control.key,
            b"ask",
            self._challenge,
            nonce.encode(),
            self.path.encode(),
            body,
        )
        is_genuine = hmac.compare_digest(question_seal.encode(), expected_seal.encode())
        # Without a challenge of its own connection a question could be a recorded one.
        if not (self._challenge and is_genuine):
            self.send_error(403)
            return
        try:
            answer = control.answer(self.path, json.loads(body))
            payload = json.dumps(answer).encode()
        # A member may be of another version of this program: its question must not end the thread.
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            self.send_error(400)
            return
        answer_seal = seal(
            control.key,
            b"answer",
            nonce.encode(),
            payload,
        )
        self.send_response(200)
        self.send_header("Content-Length", str(len(payload)))
        self.send_header(SEAL_HEADER, answer_seal)
        self.end_headers()
        self.wfile.write(payload)
