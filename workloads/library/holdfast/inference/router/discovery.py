"""Finds the servers of a router, by names or in an endpoints file, and probes them."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast.inference.router.engine_connection import EngineLost, ask, make_request
from holdfast.inference.router.servers import Address, Server, ServerPool, State
from holdfast.inference.router.settings import RouterSettings
from holdfast.runtime import logs
from holdfast.support.errors import InputError

_LOOK_S = 0.5
"""The time between two looks at the endpoints file."""
_RESOLVE_S = 2.0
"""The time between two resolutions of names; a headless Service names its ready pods."""
_SWEEP_S = 0.1
_PROBE_TIMEOUT_S = 1.0


def parse_servers(text: str) -> list[tuple[str, int]]:
    """Parses HOST:PORT, separated by commas. Raises InputError."""
    servers: list[tuple[str, int]] = []
    for part in text.split(","):
        host, _, port = part.strip().rpartition(":")
        host = host.strip("[]")
        if not _is_host(host) or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise InputError(
                "a server has no host or port",
                got=part.strip() or "(nothing)",
                allowed="HOST:PORT, such as vllm-headless.serving:8000",
                fix="correct --servers",
            )
        servers.append((host, int(port)))
    return servers


def _is_host(text: str) -> bool:
    try:
        return bool(text.encode("idna"))  # as the resolver does, which takes no other name
    except UnicodeError:
        return False


def read_endpoints(document: Any, health_port: int) -> set[Address]:
    """Returns the addresses of a discovery response for Envoy."""
    addresses: set[Address] = set()
    for resource in document["resources"]:
        for locality in resource["endpoints"]:
            for entry in locality["lb_endpoints"]:
                endpoint = entry["endpoint"]
                socket = endpoint["address"]["socket_address"]
                port = socket["port_value"]
                check = endpoint.get("health_check_config") or {}
                probe_port = health_port or check.get("port_value") or port
                addresses.add(Address(socket["address"], port, probe_port))
    return addresses


class Discovery:
    """Follows names or a file, and probes each server."""

    def __init__(self, settings: RouterSettings, pool: ServerPool) -> None:
        self._settings = settings
        self._pool = pool
        self._names = parse_servers(settings.servers) if settings.servers else []
        self._signature: tuple[int, int] | None = None

    async def run(self) -> None:
        """Follows the servers until the task is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweep())
            while True:
                addresses = await self._look()
                if addresses is not None:
                    for server in self._pool.set_addresses(addresses):
                        server.probing = group.create_task(self._probe(server))
                await asyncio.sleep(_RESOLVE_S if self._names else _LOOK_S)

    async def _look(self) -> set[Address] | None:
        """Returns the addresses; None if they have not changed or cannot be read now."""
        if self._names:
            return await self._resolve(self._names)
        path = Path(self._settings.endpoints_file)
        try:
            status = path.stat()
            signature = (status.st_ino, status.st_mtime_ns)
            if signature == self._signature:
                return None
            addresses = read_endpoints(json.loads(path.read_bytes()), self._settings.health_port)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            logs.warning("servers", f"the endpoints file cannot be read: {type(error).__name__}")
            return None
        self._signature = signature
        return addresses

    async def _resolve(self, names: Iterable[tuple[str, int]]) -> set[Address] | None:
        """Returns every address of the names.

        A name without an address, such as that of a Service without ready pods, adds no server.
        If the name server does not answer, the last addresses remain.
        """
        loop = asyncio.get_running_loop()
        addresses: set[Address] = set()
        for host, port in names:
            try:
                infos = await loop.getaddrinfo(host, port, type=1)
            except OSError as error:
                if error.errno in (-2, -5):  # EAI_NONAME, EAI_NODATA
                    continue
                return None
            for info in infos:
                probe_port = self._settings.health_port or port
                addresses.add(Address(str(info[4][0]), port, probe_port))
        return addresses

    async def _probe(self, server: Server) -> None:
        loop = asyncio.get_running_loop()
        address = server.address
        request = make_request("GET", self._settings.health_path, str(address))
        while True:
            start = loop.time()
            try:
                status, _ = await ask(
                    address.host,
                    address.health_port,
                    request,
                    timeout_s=_PROBE_TIMEOUT_S,
                )
            except EngineLost as lost:
                # A busy machine may answer slowly: the data of its streams shows that it lives.
                if lost.cause != "silent" and lost.cause != "unreachable":
                    self._pool.suspect(server)
                elif loop.time() - start < _PROBE_TIMEOUT_S / 2:
                    self._pool.set_state(server, State.UNKNOWN)
            else:
                server.heard_at = loop.time()
                self._pool.set_state(server, State.READY if status == 200 else State.DRAINING)
            await asyncio.sleep(self._settings.probe_s)

    async def _sweep(self) -> None:
        """Ends connections that are silent for too long, and moves streams."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(_SWEEP_S)
            now = loop.time()
            # If this process itself was stopped, the silence was its own.
            if now - before > _SWEEP_S + 0.5:
                self._excuse(now)
            self._pool.sweep(
                now,
                hang_s=self._settings.hang_s,
                drain_s=self._settings.drain_s,
            )

    def _excuse(self, now: float) -> None:
        for server in self._pool.all():
            server.heard_at = now
            for connection in server.connections:
                connection.received_at = now
