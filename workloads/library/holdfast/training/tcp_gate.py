"""torch's store behind a gate: only connections whose two ends have proven the run's key reach it.

A TCPStore asks for no password, lists its keys to any client, and torch's rendezvous unpickles what
it reads there. So it listens on loopback, and a gate on the port that others reach relays to it.
Who connects gets a challenge and proves the key by HMAC over it; the host proves it in turn. The
key itself is never sent and is in no store.
"""

# Why it is so: infra/decisions/0085.

import asyncio
import hmac
import secrets
import socket
import threading
from abc import ABC, abstractmethod
from datetime import timedelta

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from holdfast.checkpoint.gangs import signing_key

LOOPBACK = "127.0.0.1"
PROOF_S = 5.0
"""For the proof, from the first byte to the last."""
MOST_UNPROVEN = 256
_BYTES = 32
_CHUNK = 1 << 16

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def join_key(run: str) -> bytes:
    """By which members of `run` know each other. Without a signing key it follows from the run's
    name alone.
    """
    key = signing_key()
    return hmac.digest(key, f"join {run}".encode(), "sha256") if key else run.encode()


def loopback_store(timeout: timedelta, port: int = 0) -> TCPStore:
    """Hosted here, for processes of this pod; 0: the kernel picks the port. Raises OSError where it
    is taken.
    """
    listener = socket.create_server((LOOPBACK, port))
    return TCPStore(
        LOOPBACK,
        listener.getsockname()[1],
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def client_store(port: int, timeout: timedelta) -> TCPStore:
    """Of a store, or of a tunnel to one, on this machine's loopback. Raises torch's DistError or
    RuntimeError.
    """
    return TCPStore(
        LOOPBACK,
        port,
        is_master=False,
        timeout=timeout,
        wait_for_workers=False,
    )


class _Relay(ABC):
    """Joins each connection that it accepts with another one, from a thread of its own."""

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self._key = key
        self._ended = asyncio.Event()
        self._unproven: dict[asyncio.Task[None], None] = {}
        """The oldest first."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(
            target=self._work,
            args=(listener,),
            name="store-relay",
            daemon=True,
        ).start()

    def close(self) -> None:
        """Ends its connections: who waits for an answer through one sees its end."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ended.set)

    @abstractmethod
    async def _joined(self, near: _Streams) -> _Streams:
        """The other connection, once both ends are proven. Raises OSError or IncompleteReadError."""

    def _work(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._accepted, sock=listener)
        await self._ended.wait()
        server.close()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._unproven[task] = None
        if len(self._unproven) > MOST_UNPROVEN:
            next(iter(self._unproven)).cancel()
        try:
            async with asyncio.timeout(PROOF_S):
                far = await self._joined((reader, writer))
            self._unproven.pop(task)
            await _relayed((reader, writer), far)
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            return  # a stranger, or a member that is gone
        finally:
            self._unproven.pop(task, None)
            writer.close()


class Gate(_Relay):
    """A store that this process hosts."""

    def __init__(self, port: int, key: bytes, *, timeout: timedelta) -> None:
        """Raises OSError where the port is taken."""
        both = socket.has_dualstack_ipv6()
        listener = socket.create_server(
            ("", port),
            family=socket.AF_INET6 if both else socket.AF_INET,
            dualstack_ipv6=both,
            backlog=1024,
        )
        self.store = loopback_store(timeout)
        super().__init__(listener, key)

    async def _joined(self, near: _Streams) -> _Streams:
        reader, writer = near
        challenge = secrets.token_bytes(_BYTES)
        writer.write(challenge)
        nonce = await reader.readexactly(_BYTES)
        proof = await reader.readexactly(_BYTES)
        _check(proof, _proof(self._key, b"member", challenge, nonce))
        writer.write(_proof(self._key, b"host", challenge, nonce))
        return await asyncio.open_connection(LOOPBACK, self.store.port)


class Tunnel(_Relay):
    """The way to the store behind another process's gate: `port` on loopback."""

    def __init__(self, address: tuple[str, int], key: bytes) -> None:
        self._address = address
        listener = socket.create_server((LOOPBACK, 0))
        self.port: int = listener.getsockname()[1]
        super().__init__(listener, key)

    async def _joined(self, near: _Streams) -> _Streams:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            challenge = await reader.readexactly(_BYTES)
            nonce = secrets.token_bytes(_BYTES)
            writer.write(nonce + _proof(self._key, b"member", challenge, nonce))
            _check(await reader.readexactly(_BYTES), _proof(self._key, b"host", challenge, nonce))
        except BaseException:
            writer.close()
            raise
        return reader, writer


def _proof(key: bytes, side: bytes, challenge: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, side + challenge + nonce, "sha256")


def _check(proof: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(proof, expected):
        raise PermissionError("the other end has another key")


async def _relayed(near: _Streams, far: _Streams) -> None:
    """Until either end is gone."""
    ways = [
        asyncio.create_task(_pump(near[0], far[1])),
        asyncio.create_task(_pump(far[0], near[1])),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        far[1].close()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
