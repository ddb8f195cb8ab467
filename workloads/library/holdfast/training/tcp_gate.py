"""torch's store behind a gate: only connections whose two ends have proven the run's key reach it.

A TCPStore asks for no password, lists its keys to any client, and torch's rendezvous unpickles what
it reads there. So it listens on loopback, and a gate on the port that others reach relays to it.
A client gets a challenge and proves the key by an HMAC over it; the host then proves it to the
client. The key itself is never sent and is in no store.
"""

# Why it is so: infra/decisions/0085.

import asyncio
import hmac
import secrets
import socket
import threading
from abc import ABC, abstractmethod
from datetime import timedelta

import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from holdfast.checkpoint.gangs import signing_key
from holdfast.support.errors import InputError

LOOPBACK = "127.0.0.1"
PROOF_S = 5.0
"""Seconds for the whole proof, from the first byte to the last."""
MAX_UNPROVEN = 256
OLDEST_TORCH = (2, 8)
"""Version from which a store of several nodes ends when its first node goes silent."""
_NONCE_BYTES = 32
_CHUNK_BYTES = 1 << 16

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def join_key(run: str) -> bytes:
    """Returns the key by which members of `run` recognize each other.

    Without a signing key it follows from the run's name alone.
    """
    key = signing_key()
    if not key:
        return run.encode()
    return hmac.digest(key, f"join {run}".encode(), "sha256")


def check_torch() -> None:
    """Raises InputError if this PyTorch is too old for several processes that meet."""
    major, minor, *_ = torch.__version__.split(".")
    if (int(major), int(minor)) < OLDEST_TORCH:
        raise InputError(
            "this PyTorch is too old for gangs and for `holdfast train`",
            got=torch.__version__,
            allowed=f"{'.'.join(map(str, OLDEST_TORCH))} or newer; checkpoints alone work with 2.7",
            fix="install a newer PyTorch in the image",
        )


def host_loopback_store(timeout: timedelta, port: int = 0) -> TCPStore:
    """Hosts a store for processes of this pod.

    The kernel picks the port if it is 0. Raises OSError if the port is taken, and InputError for
    a PyTorch that is too old.
    """
    check_torch()
    listener = socket.create_server((LOOPBACK, port))
    _, listening_port = listener.getsockname()
    return TCPStore(
        LOOPBACK,
        listening_port,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def connect_store(port: int, timeout: timedelta) -> TCPStore:
    """Connects to a store, or to a tunnel to one, on this machine's loopback.

    Raises torch's DistError or RuntimeError, and InputError for a PyTorch that is too old.
    """
    check_torch()
    return TCPStore(
        LOOPBACK,
        port,
        is_master=False,
        timeout=timeout,
        wait_for_workers=False,
    )


class _Relay(ABC):
    """Relays each accepted connection to another one, in a thread of its own."""

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self._key = key
        self._closing = asyncio.Event()
        self._unproven: dict[asyncio.Task[None], None] = {}
        """Tasks whose client has not proven the key yet, oldest first."""
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(
            target=self._work,
            args=(listener,),
            name="store-relay",
            daemon=True,
        )
        thread.start()

    def close(self) -> None:
        """Closes the connections, so that a client waiting for an answer through one fails."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closing.set)

    @abstractmethod
    async def _open_outbound(self, inbound: _Streams) -> _Streams:
        """Proves both ends and opens the other connection.

        Raises OSError or IncompleteReadError.
        """

    def _work(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._accept, sock=listener)
        await self._closing.wait()
        server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inbound = (reader, writer)
        task = asyncio.current_task()
        assert task
        self._unproven[task] = None
        if len(self._unproven) > MAX_UNPROVEN:
            oldest = next(iter(self._unproven))
            oldest.cancel()
        try:
            async with asyncio.timeout(PROOF_S):
                outbound = await self._open_outbound(inbound)
            self._unproven.pop(task)
            await _relay(inbound, outbound)
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            return  # a stranger, or a lost member
        finally:
            self._unproven.pop(task, None)
            writer.close()


class Gate(_Relay):
    """Gate of a store that this process hosts."""

    def __init__(
        self,
        port: int,
        key: bytes,
        *,
        timeout: timedelta,
    ) -> None:
        """Raises OSError if the port is taken."""
        dual_stack = socket.has_dualstack_ipv6()
        listener = socket.create_server(
            ("", port),
            family=socket.AF_INET6 if dual_stack else socket.AF_INET,
            dualstack_ipv6=dual_stack,
            backlog=1024,
        )
        self.store = host_loopback_store(timeout)
        super().__init__(listener, key)

    async def _open_outbound(self, inbound: _Streams) -> _Streams:
        reader, writer = inbound
        challenge = secrets.token_bytes(_NONCE_BYTES)
        writer.write(challenge)
        nonce = await reader.readexactly(_NONCE_BYTES)
        proof = await reader.readexactly(_NONCE_BYTES)
        _check(
            proof,
            _make_proof(
                self._key,
                b"member",
                challenge,
                nonce,
            ),
        )
        host_proof = _make_proof(
            self._key,
            b"host",
            challenge,
            nonce,
        )
        writer.write(host_proof)
        return await asyncio.open_connection(LOOPBACK, self.store.port)


class Tunnel(_Relay):
    """Local end of a tunnel to the store behind another process's gate: `port` on loopback."""

    def __init__(self, address: tuple[str, int], key: bytes) -> None:
        self._address = address
        listener = socket.create_server((LOOPBACK, 0))
        self.port: int = listener.getsockname()[1]
        super().__init__(listener, key)

    async def _open_outbound(self, inbound: _Streams) -> _Streams:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            challenge = await reader.readexactly(_NONCE_BYTES)
            nonce = secrets.token_bytes(_NONCE_BYTES)
            proof = _make_proof(
                self._key,
                b"member",
                challenge,
                nonce,
            )
            writer.write(nonce + proof)
            host_proof = await reader.readexactly(_NONCE_BYTES)
            _check(
                host_proof,
                _make_proof(
                    self._key,
                    b"host",
                    challenge,
                    nonce,
                ),
            )
        except BaseException:
            writer.close()
            raise
        return reader, writer


def _make_proof(
    key: bytes,
    side: bytes,
    challenge: bytes,
    nonce: bytes,
) -> bytes:
    return hmac.digest(key, side + challenge + nonce, "sha256")


def _check(proof: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(proof, expected):
        raise PermissionError("the other end has another key")


async def _relay(inbound: _Streams, outbound: _Streams) -> None:
    """Copies bytes in both directions until either end closes."""
    inbound_reader, inbound_writer = inbound
    outbound_reader, outbound_writer = outbound
    pumps = [
        asyncio.create_task(_pump(inbound_reader, outbound_writer)),
        asyncio.create_task(_pump(outbound_reader, inbound_writer)),
    ]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        outbound_writer.close()
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
