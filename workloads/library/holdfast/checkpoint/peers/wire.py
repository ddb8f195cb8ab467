"""One question to a keeper and its answer, both sealed with the run's key, over one connection.

The keeper sends a challenge; the question is sealed over it and brings a nonce, the answer is sealed over that. So
neither can be replayed, the key is never sent, and nothing is parsed before its seal is verified. Raw bytes may follow
a question or an answer: they are no part of the seal, and the receiver compares their digests, which are.
"""

import hashlib
import hmac
import json
import os
import socket
from typing import Any

from holdfast.checkpoint.errors import NotFound
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import signing_key

TIMEOUT_S = 15.0
"""Between two pieces of a message: a peer that is stopped and not gone must not hold an uploader for ever."""
MAX_HEAD = 1 << 24
CHALLENGE_BYTES = 32

Head = dict[str, Any]
Address = tuple[str, int]


def peer_key(run: str) -> bytes:
    """By which processes of `run` know each other. Without a signing key it follows from the run's name alone."""
    key = signing_key()
    return hmac.digest(key, f"peer copies {run}".encode(), "sha256") if key else run.encode()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def receive(connection: socket.socket, length: int) -> bytes:
    """Raises EOFError, OSError."""
    into = bytearray(length)
    receive_into(connection, memoryview(into))
    return bytes(into)


def receive_into(connection: socket.socket, into: memoryview) -> None:
    at = 0
    while at < len(into):
        count = connection.recv_into(into[at : at + (1 << 20)])
        if not count:
            raise EOFError("the other end is gone")
        at += count


def send_head(connection: socket.socket, key: bytes, side: bytes, challenge: bytes, head: Head) -> None:
    body = json.dumps(head, separators=(",", ":")).encode()
    seal = hmac.digest(key, side + challenge + body, "sha256")
    connection.sendall(len(body).to_bytes(4) + seal + body)


def receive_head(connection: socket.socket, key: bytes, side: bytes, challenge: bytes) -> Head:
    """Raises PermissionError for a seal of another key, EOFError, OSError, ValueError."""
    length = int.from_bytes(receive(connection, 4))
    if length > MAX_HEAD:
        raise PermissionError("a message longer than any")
    seal, body = receive(connection, CHALLENGE_BYTES), receive(connection, length)
    if not hmac.compare_digest(seal, hmac.digest(key, side + challenge + body, "sha256")):
        raise PermissionError("the other end has another key")
    found: Head = json.loads(body)
    return found


class Question:
    """Raises NotFound where the keeper does not answer, does not know the key or refuses."""

    def __init__(self, address: Address, key: bytes, head: Head, *raw: bytes | memoryview) -> None:
        # Not by `secrets`: a file of that name next to the user's script would be imported instead.
        self._nonce = os.urandom(CHALLENGE_BYTES)
        self._connection: socket.socket | None = None
        try:
            connection = self._connection = socket.create_connection(address, TIMEOUT_S)
            with_nonce = head | {"nonce": self._nonce.hex()}
            send_head(connection, key, b"ask", receive(connection, CHALLENGE_BYTES), with_nonce)
            # Asked before they are sent: who refuses closes, and the reason would be lost with the bytes.
            self.answer = receive_head(connection, key, b"answer", self._nonce)
            if raw and "refused" not in self.answer:
                for data in raw:
                    connection.sendall(data)
                    failpoint("peer.send")
                self.answer = receive_head(connection, key, b"taken", self._nonce)
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise NotFound(f"{address[0]}:{address[1]} keeps no copy for this process: {error}") from error
        if "refused" in self.answer:
            self.close()
            raise NotFound(f"{address[0]}:{address[1]} refused: {self.answer['refused']}"[:500])

    def read_into(self, into: memoryview) -> None:
        """The bytes after the answer. Raises NotFound."""
        assert self._connection
        try:
            receive_into(self._connection, into)
        except (OSError, EOFError) as error:
            raise NotFound(f"a copy was cut off: {error}") from error

    def close(self) -> None:
        if self._connection:
            self._connection.close()


def ask(address: Address, key: bytes, head: Head, *raw: bytes | memoryview) -> Head:
    """The answer. Raises NotFound as Question."""
    question = Question(address, key, head, *raw)
    question.close()
    return question.answer
