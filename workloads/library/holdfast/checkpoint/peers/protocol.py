"""The protocol of a keeper: one question and its answer over one connection, both sealed with the
run's key.

The keeper sends a challenge. The question is sealed over it and brings a nonce; the answer is
sealed over that nonce. So neither can be replayed, the key is never sent, and nothing is parsed
before its seal is verified. Raw bytes may follow a question or an answer. They are not part of the
seal: the receiver compares their digests, which are.
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
"""Longest pause between two pieces of a message. A peer that is stopped, but not dead, must not
block an uploader forever.
"""
MAX_HEAD = 1 << 24
CHALLENGE_BYTES = 32

Head = dict[str, Any]
Address = tuple[str, int]


def peer_key(run: str) -> bytes:
    """Returns the key by which processes of `run` recognize each other. Without a signing key it is
    the run's name.
    """
    key = signing_key()
    if key:
        return hmac.digest(key, f"peer copies {run}".encode(), "sha256")
    return run.encode()


def receive(connection: socket.socket, length: int) -> bytes:
    """Receives exactly `length` bytes. Raises EOFError, OSError."""
    buffer = bytearray(length)
    fill(memoryview(buffer), "the message", connection.recv_into)
    return bytes(buffer)


def send_head(
    connection: socket.socket,
    key: bytes,
    side: bytes,
    challenge: bytes,
    head: Head,
) -> None:
    body = json.dumps(head, separators=(",", ":")).encode()
    seal = hmac.digest(key, side + challenge + body, "sha256")
    length = len(body).to_bytes(4)
    connection.sendall(length + seal + body)


def receive_head(
    connection: socket.socket,
    key: bytes,
    side: bytes,
    challenge: bytes,
) -> Head:
    """Receives a head and verifies its seal before it parses it.

    Raises PermissionError for a seal of another key, EOFError, OSError, ValueError.
    """
    length = int.from_bytes(receive(connection, 4))
    if length > MAX_HEAD:
        raise PermissionError(f"the message has {length} bytes; at most {MAX_HEAD} are allowed")
    seal = receive(connection, CHALLENGE_BYTES)
    body = receive(connection, length)
    expected = hmac.digest(key, side + challenge + body, "sha256")
    if not hmac.compare_digest(seal, expected):
        raise PermissionError("the other end has another key")
    head: Head = json.loads(body)
    return head


def ask(
    address: Address,
    key: bytes,
    head: Head,
    *raw: bytes | memoryview,
    into: memoryview | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Head:
    """Asks the keeper at `address` and returns its answer.

    Sends `raw` after the head, and fills `into` with the bytes after the answer. `timeout_s` limits
    each wait for a piece. Raises NotFound if the keeper does not answer, does not know the key or
    refuses.
    """
    # Not by `secrets`: a file of that name next to the user's script would be imported instead.
    nonce = os.urandom(CHALLENGE_BYTES)
    question = head | {"nonce": nonce.hex()}
    name = f"{address[0]}:{address[1]}"
    try:
        with socket.create_connection(address, timeout_s) as connection:
            challenge = receive(connection, CHALLENGE_BYTES)
            send_head(
                connection,
                key,
                b"ask",
                challenge,
                question,
            )
            # Before the bytes are sent: a keeper that refuses closes, and its reason would be lost
            # with them.
            answer = receive_head(
                connection,
                key,
                b"answer",
                nonce,
            )
            if raw and "refused" not in answer:
                for data in raw:
                    connection.sendall(data)
                    failpoint("peer.send")
                answer = receive_head(
                    connection,
                    key,
                    b"taken",
                    nonce,
                )
            if into is not None and "refused" not in answer:
                fill(into, "the copy", connection.recv_into)
    except (OSError, EOFError, ValueError) as error:
        raise NotFound(f"{name} keeps no copy for this process: {error}") from error
    if "refused" in answer:
        reason = f"{name} refused: {answer['refused']}"
        raise NotFound(reason[:500])
    return answer
