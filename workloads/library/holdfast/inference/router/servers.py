"""The servers behind a router: their state, the choice of one, and the streams that they have."""

import asyncio
import hashlib
import math
import random
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.inference.errors import Refused
from holdfast.inference.router.engine_connection import EngineConnection
from holdfast.runtime import logs

_SPILL = 1.25
"""The multiple of the average load up to which requests stay with the server of their prefix."""
_SPILL_REQUESTS = 3
"""The number of requests above the average up to which they stay, where that is more."""
_MOST_LOST = 3
"""The servers lost without a new token at which a request is given up: it may be the cause."""
DEATHS = frozenset(("died", "hung"))
"""The causes of a loss that a request may be guilty of."""
_MOVE_SPREAD_S = 1.0
"""The time over which the streams of a draining server move, so that prefills do not pile up."""


class State(StrEnum):
    UNKNOWN = "unknown"
    """It was not probed yet, or lost a request since the last probe."""
    READY = "ready"
    DRAINING = "draining"
    """Answers its probes with a status other than 200, or is no longer listed."""
    SILENT = "silent"
    """Does not answer, on any connection."""


@dataclass(frozen=True, order=True, slots=True)
class Address:
    host: str
    port: int
    health_port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(kw_only=True, eq=False)
class Server:
    address: Address
    state: State = State.UNKNOWN
    state_since: float = 0.0
    heard_at: float = 0.0
    """The last time that anything arrived from it."""
    requests: int = 0
    connections: set[EngineConnection] = field(default_factory=set)
    is_listed: bool = True
    """True while discovery names it."""
    probing: asyncio.Task[None] | None = None

    def weigh(self, key: bytes) -> bytes:
        """Returns the weight of rendezvous hashing for a prefix."""
        return hashlib.blake2b(key + str(self.address).encode(), digest_size=8).digest()

    def last_data(self) -> float:
        times = [connection.received_at for connection in self.connections]
        return max([self.heard_at, *times])


class Losses:
    """The servers that a request has lost since its last token.

    A draining server does not count: it would have ended with any request.
    """

    def __init__(self) -> None:
        self._causes: list[str] = []

    def add(self, server: Server, cause: str) -> None:
        if server.state is not State.DRAINING:
            self._causes.append(cause)

    def clear(self) -> None:
        self._causes.clear()

    @property
    def remaining(self) -> int:
        """The number of servers that the request may still lose."""
        return _MOST_LOST - len(self._causes)

    @property
    def reason(self) -> str:
        """The reason to give up the request: one of DEATHS only if it may be the cause of all."""
        is_suspect = not self.remaining and DEATHS.issuperset(self._causes)
        return self._causes[-1] if is_suspect else "lost"


class ServerPool:
    def __init__(self) -> None:
        self._servers: dict[Address, Server] = {}
        self._changed = asyncio.Event()

    def all(self) -> list[Server]:
        return list(self._servers.values())

    def ready(self) -> list[Server]:
        return [server for server in self._servers.values() if server.state is State.READY]

    def set_addresses(self, addresses: Collection[Address]) -> list[Server]:
        """Adopts the addresses that discovery names; returns the servers that are new."""
        new: list[Server] = []
        now = asyncio.get_running_loop().time()
        for address in addresses:
            if address not in self._servers:
                server = Server(address=address, heard_at=now)
                self._servers[address] = server
                new.append(server)
            self._servers[address].is_listed = True
        for server in self.all():
            if server.address not in addresses:
                server.is_listed = False
                # Its streams go on; with the last of them it is forgotten.
                self.set_state(server, State.DRAINING)
                self._forget_unused(server)
        return new

    def set_state(self, server: Server, state: State) -> None:
        if server.state is state or (not server.is_listed and state is State.READY):
            return
        logs.info("servers", f"{server.address}: {server.state} -> {state}")
        server.state = state
        server.state_since = asyncio.get_running_loop().time()
        self._changed.set()
        self._changed = asyncio.Event()

    def choose(self, prefix_key: bytes, avoid: Collection[Server] = ()) -> Server | None:
        """Returns a ready server: that of the prefix, or the next one if its load is high.

        When a server is added, only the prefixes that it takes over move (rendezvous hashing).
        Without a key, a server with the least load is chosen.
        """
        servers = self.ready()
        candidates = [server for server in servers if server not in avoid] or servers
        if not candidates:
            return None
        if not prefix_key:
            load = min(server.requests for server in candidates)
            idlest = [server for server in candidates if server.requests == load]
            return random.choice(idlest)
        total = sum(server.requests for server in candidates) + 1
        average = total / len(candidates)
        limit = max(math.ceil(_SPILL * average), math.ceil(average) + _SPILL_REQUESTS)
        ranking = sorted(candidates, key=lambda server: server.weigh(prefix_key), reverse=True)
        for server in ranking:
            if server.requests < limit:
                return server
        return min(ranking, key=lambda server: server.requests)

    async def take(
        self,
        prefix_key: bytes,
        *,
        until_s: float,
        avoid: Collection[Server] = (),
    ) -> Server:
        """Waits for a ready server and counts a request on it. Raises Refused with 503."""
        while True:
            server = self.choose(prefix_key, avoid)
            if server is not None:
                server.requests += 1
                return server
            try:
                async with asyncio.timeout_at(until_s):
                    await self._changed.wait()
            except TimeoutError:
                raise Refused(
                    503,
                    "no server is ready",
                    retry_after_s=1.0,
                    reason="no_server",
                ) from None

    def give_back(self, server: Server) -> None:
        server.requests -= 1
        self._forget_unused(server)

    def suspect(self, server: Server) -> None:
        """Keeps requests from a server that lost one, until it answers a probe."""
        if server.state is State.READY:
            self.set_state(server, State.UNKNOWN)

    def _forget_unused(self, server: Server) -> None:
        if server.is_listed or server.requests:
            return
        self._servers.pop(server.address, None)
        if server.probing is not None:
            server.probing.cancel()

    def sweep(self, now: float, *, hang_s: float, drain_s: float) -> None:
        """Moves streams from servers that are silent or drain, if another server is ready."""
        for server in self.all():
            for connection in list(server.connections):
                if connection.silence_s(now) > connection.limit_s:
                    connection.fail("hung")
            has_other = any(other is not server for other in self.ready())
            if server.state in (State.READY, State.UNKNOWN):
                # A server that answers nothing is given up only if its streams can go elsewhere.
                if has_other and server.requests and now - server.last_data() > hang_s:
                    self.set_state(server, State.SILENT)
                    _fail_all(server, "hung")
            elif server.state is State.SILENT:
                if has_other:
                    _fail_all(server, "hung")
            elif has_other and now - server.state_since > drain_s:
                self._move_some(server, now - server.state_since - drain_s)

    def _move_some(self, server: Server, elapsed_s: float) -> None:
        share = min(1.0, (elapsed_s + 0.1) / _MOVE_SPREAD_S)
        connections = [item for item in server.connections if item.is_movable]
        for connection in connections[: math.ceil(len(connections) * share)]:
            connection.fail("drained")


def _fail_all(server: Server, cause: str) -> None:
    for connection in list(server.connections):
        connection.fail(cause)
