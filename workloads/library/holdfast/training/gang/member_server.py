"""What gang members answer each other apart from the tensors: are you alive, I lost my group, take
me in.

One small HTTP server for each member, so that every question has a time limit of its own; a store
of torch has none for a peer that is stopped and not gone. Answers wait at most POLL_S, so a caller
looks around again that often.

Who asks seals nonce, path and body with the run's key, and the answer is sealed with the same
nonce: the key is never sent, an old question is not answered again, and an old answer answers
nothing. What changes something is taken only from members of an epoch that this one knows.
"""

import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any, cast

from holdfast.runtime.bounded_http import BoundedHandler, BoundedServer
from holdfast.training.gang.member_addresses import Address
from holdfast.training.gang.membership import Epoch, Member

POLL_S = 1.0
# Read before the seal is checked: a stranger must not make a member hold more than this.
MAX_BODY = 1 << 12
NONCE_HEADER = "Holdfast-Nonce"
SEAL_HEADER = "Holdfast-Seal"
NONCES = 1 << 14
"""Of questions that were answered: each is answered once."""
EPOCHS = 8
"""Of which reports are still taken."""


def seal(key: bytes, *parts: bytes) -> str:
    """Of a question or an answer, in hexadecimal."""
    return hmac.new(key, b"\0".join(parts), "sha256").hexdigest()


class Control:
    """This member's answers. `phase`: waiting (of no epoch), restoring, member, complete."""

    def __init__(self, me: Member, port: int, key: bytes) -> None:
        """`key`: by which a question must be sealed; without it a stranger could have any place of
        the gang.
        """
        self.me = me
        self.key = key
        self._nonces: dict[str, None] = {}
        self._epochs: dict[int, Epoch] = {}
        """The newest that this member entered."""
        self._changed = threading.Condition()
        self.phase = "waiting"
        self._epoch: Epoch | None = None
        self._reports: dict[int, set[int]] = {}
        """Epoch -> indices that have lost its group."""
        self._joins: dict[int, tuple[Member, float]] = {}
        self._unheard: dict[int, tuple[str, int]] = {}
        """Index -> incarnation that wanted to join and did not answer, and how often."""
        self.shown: dict[str, int | str | list[int]] = {"total": 0, "closed": []}
        """What else its status says. `total`: steps of the whole training, 0: not known yet.
        `closed`: places that live and have a port closed to this one.
        """
        self._lost = 0
        """Newest epoch whose group this member has lost."""
        # Never accepted from: a client that connects learns whether ports that the system chooses
        # are open.
        self._ear = socket.create_server(("", 0), backlog=1024)
        self.ear = int(self._ear.getsockname()[1])
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
        self._ear.close()

    def enter(self, epoch: Epoch | None, phase: str) -> None:
        with self._changed:
            self._epoch = epoch
            self.phase = phase
            if epoch:
                self._epochs[epoch.number] = epoch
                # A report of an older epoch changes nothing any more, and a Job has more epochs
                # than it should remember.
                for old in sorted(self._epochs)[:-EPOCHS]:
                    del self._epochs[old]
                    self._reports.pop(old, None)
                for member in epoch.members:
                    known = self._joins.get(member.index)
                    # A replacement may have come since: it is in no epoch yet, and must not be
                    # forgotten.
                    if known and known[0] == member:
                        del self._joins[member.index]
            self._changed.notify_all()

    def lose(self, epoch: Epoch) -> None:
        """Others may still wait in a collective of it, for a member that they hear."""
        with self._changed:
            self._lost = epoch.number

    def reported(self, epoch: int) -> frozenset[int]:
        with self._changed:
            return frozenset(self._reports.get(epoch, ()))

    def joining(self) -> dict[int, Member]:
        if not self._joins:  # the lead asks in each step
            return {}
        with self._changed:
            return {index: member for index, (member, _) in self._joins.items()}

    def joining_for_s(self) -> float:
        """Since the first question of those that ask now; 0: none asks."""
        with self._changed:
            return max((time.monotonic() - since for _, since in self._joins.values()), default=0.0)

    def forget(self, gone: Collection[Member]) -> None:
        """Askers that do not answer: they are gone again, or their port is closed from here."""
        with self._changed:
            for member in gone:
                name, times = self._unheard.get(member.index, ("", 0))
                again = times if name == member.incarnation else 0
                self._unheard[member.index] = member.incarnation, again + 1
            self._joins = {
                index: join for index, join in self._joins.items() if join[0] not in gone
            }

    def wait(self, timeout_s: float) -> None:
        """Until a question has come."""
        with self._changed:
            self._changed.wait(timeout_s)

    # Below: the server's threads.

    def is_new(self, nonce: str) -> bool:
        with self._changed:
            if nonce in self._nonces:
                return False
            self._nonces[nonce] = None
            # The table would grow for as long as the Job runs.
            if len(self._nonces) > NONCES:
                del self._nonces[next(iter(self._nonces))]
            return True

    def answer(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Raises ValueError, KeyError, TypeError or OverflowError for what no member asks."""
        if path == "/status":
            with self._changed:
                return self._status()
        asks = Member(index=int(body["index"]), incarnation=str(body["incarnation"])[:64])
        if path == "/join":
            return self._joined(asks)
        if path == "/report":
            return self._reported(asks, int(body["epoch"]))
        raise ValueError(f"no such path: {path}")

    def _reported(self, asks: Member, number: int) -> dict[str, Any]:
        with self._changed:
            known = self._epochs.get(number)
            if known and asks in known.members:
                self._reports.setdefault(number, set()).add(asks.index)
                self._changed.notify_all()
            return self._status_once(lambda epoch: epoch.number > number)

    def _joined(self, asks: Member) -> dict[str, Any]:
        with self._changed:
            known = self._joins.get(asks.index)
            # Askers repeat themselves each second: the time of the first question stays, or the
            # wait would never end.
            if not known or known[0] != asks:
                self._joins[asks.index] = (asks, time.monotonic())
                self._changed.notify_all()
            return self._status_once(lambda epoch: asks in epoch.members)

    def _status_once(self, awaited: Callable[[Epoch], bool]) -> dict[str, Any]:
        # The lock is free while it waits, so that other members are answered meanwhile.
        self._changed.wait_for(lambda: self._epoch is not None and awaited(self._epoch), POLL_S)
        return self._status()

    def _status(self) -> dict[str, Any]:
        return (
            asdict(self.me)
            | self.shown
            | {
                "phase": self.phase,
                "epoch": self._epoch.to_json() if self._epoch else None,
                "ear": self.ear,
                "lost": self._lost,
                "joining": sorted(self._joins),
                "unheard": dict(self._unheard.values()),
            }
        )


class _Server(BoundedServer):
    most = request_queue_size = 1024  # all members of the largest gang at one of them

    def __init__(self, address: Address, control: Control) -> None:
        self.control = control
        super().__init__(address, _Handler)


class _Handler(BoundedHandler):
    most_body = MAX_BODY

    def do_POST(self) -> None:
        control = cast(_Server, self.server).control
        nonce = self.headers.get(NONCE_HEADER, "")[:32]
        body = self.body or b""
        wanted = seal(control.key, b"ask", nonce.encode(), self.path.encode(), body)
        genuine = hmac.compare_digest(self.headers.get(SEAL_HEADER, "").encode(), wanted.encode())
        # In this order: a stranger must not push genuine nonces out of the table.
        if not (genuine and control.is_new(nonce)):
            self.send_error(403)
            return
        try:
            payload = json.dumps(control.answer(self.path, json.loads(body))).encode()
        # Who has the key may still be of another version of this program: its question must not end
        # the thread.
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            self.send_error(400)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(payload)))
        self.send_header(SEAL_HEADER, seal(control.key, b"answer", nonce.encode(), payload))
        self.end_headers()
        self.wfile.write(payload)
