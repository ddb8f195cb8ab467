"""One question to a keeper and its answer, both sealed with the run's key, over one connection.

The keeper sends a challenge; the question is sealed over it and brings a nonce, the answer is
sealed over that. So neither can be replayed, the key is never sent, and nothing is parsed before
its seal is verified. Raw bytes may follow a question or an answer: they are no part of the seal,
and the receiver compares their digests, which are.
"""

import hmac
import json
import os
import socket
from typing import Any

from holdfast.checkpoint.errors import NotFound
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import signing_key
from holdfast.checkpoint.stores.storage import fill

TIMEOUT_S = 15.0
"""Between two pieces of a message: a peer that is stopped and not gone must not hold an uploader
for ever.
"""
MAX_HEAD = 1 << 24
CHALLENGE_BYTES = 32

Head = dict[str, Any]
Address = tuple[str, int]


def peer_key(run: str) -> bytes:
    """By which processes of `run` know each other. Without a signing key it follows from the run's
    name alone.
    """
    key = signing_key()
    if key:
        return hmac.digest(key, f"peer copies {run}".encode(), "sha256")
    return run.encode()


def receive(connection: socket.socket, length: int) -> bytes:
    """Raises EOFError, OSError."""
    into = bytearray(length)
    fill(memoryview(into), "the message", connection.recv_into)
    return bytes(into)


def send_head(
    connection: socket.socket,
    key: bytes,
    side: bytes,
    challenge: bytes,
    head: Head,
) -> None:
    body = json.dumps(head, separators=(",", ":")).encode()
    seal = hmac.digest(key, side + challenge + body, "sha256")
    connection.sendall(len(body).to_bytes(4) + seal + body)


def receive_head(
    connection: socket.socket,
    key: bytes,
    side: bytes,
    challenge: bytes,
) -> Head:
    """Raises PermissionError for a seal of another key, EOFError, OSError, ValueError."""
    length = int.from_bytes(receive(connection, 4))
    if length > MAX_HEAD:
        raise PermissionError("a message longer than any")
    seal = receive(connection, CHALLENGE_BYTES)
    body = receive(connection, length)
    if not hmac.compare_digest(seal, hmac.digest(key, side + challenge + body, "sha256")):
        raise PermissionError("the other end has another key")
    found: Head = json.loads(body)
    return found


def ask(
    address: Address,
    key: bytes,
    head: Head,
    *raw: bytes | memoryview,
    into: memoryview | None = None,
) -> Head:
    """The keeper's answer. `raw` is sent after the head; `into` is filled with the bytes after the
    answer. Raises NotFound where the keeper does not answer, does not know the key or refuses.
    """
    # Not by `secrets`: a file of that name next to the user's script would be imported instead.
    nonce = os.urandom(CHALLENGE_BYTES)
    try:
        with socket.create_connection(address, TIMEOUT_S) as connection:
            challenge = receive(connection, CHALLENGE_BYTES)
            send_head(connection, key, b"ask", challenge, head | {"nonce": nonce.hex()})
            # Before the bytes are sent: a keeper that refuses closes, and its reason would be lost
            # with them.
            answer = receive_head(connection, key, b"answer", nonce)
            if raw and "refused" not in answer:
                for data in raw:
                    connection.sendall(data)
                    failpoint("peer.send")
                answer = receive_head(connection, key, b"taken", nonce)
            if into is not None and "refused" not in answer:
                fill(into, "the copy", connection.recv_into)
    except (OSError, EOFError, ValueError) as error:
        raise NotFound(
            f"{address[0]}:{address[1]} keeps no copy for this process: {error}"
        ) from error
    if "refused" in answer:
        raise NotFound(f"{address[0]}:{address[1]} refused: {answer['refused']}"[:500])
    return answer
