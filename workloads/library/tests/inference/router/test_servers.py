"""Tests of the choice of a server and of what counts as its loss."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.inference.errors import Refused
from holdfast.inference.router.discovery import parse_servers, read_endpoints
from holdfast.inference.router.engine_connection import EngineConnection, EngineLost
from holdfast.inference.router.servers import Address, Server, ServerPool, State
from holdfast.support.errors import InputError

HANG_S = 1.5


def run(test: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(test())  # type: ignore[arg-type]


def make_pool(count: int) -> tuple[ServerPool, list[Server]]:
    pool = ServerPool()
    servers = pool.set_addresses([Address("10.0.0.1", port, port) for port in range(1, count + 1)])
    for server in servers:
        pool.set_state(server, State.READY)
    return pool, servers


def test_new_connections_do_not_hide_a_hang() -> None:
    async def test() -> None:
        pool, (hung, _) = make_pool(2)
        loop = asyncio.get_running_loop()
        connection = EngineConnection(loop)
        hung.connections.add(connection)
        hung.requests = 1
        pool.sweep(loop.time() + HANG_S + 0.1, hang_s=HANG_S, drain_s=0)
        assert hung.state is State.SILENT
        with pytest.raises(EngineLost, match="hung"):
            await connection.read_head()

    run(test)


def test_the_last_server_is_not_given_up_for_its_silence() -> None:
    async def test() -> None:
        pool, (server,) = make_pool(1)
        server.requests = 1
        pool.sweep(asyncio.get_running_loop().time() + 60, hang_s=HANG_S, drain_s=0)
        assert server.state is State.READY

    run(test)


def test_load_is_spread_even_if_all_prefixes_are_equal() -> None:
    async def test() -> None:
        pool, servers = make_pool(4)
        for _ in range(100):
            await pool.take(b"prefix", until_s=0)
        assert max(server.requests for server in servers) <= 33
        assert min(server.requests for server in servers) >= 1

    run(test)


def test_few_requests_stay_with_their_prefix() -> None:
    """A difference of three requests says little about the load."""

    async def test() -> None:
        pool, servers = make_pool(3)
        for _ in range(4):
            await pool.take(b"prefix", until_s=0)
        assert sorted(server.requests for server in servers) == [0, 0, 4]

    run(test)


def test_requests_without_a_prefix_go_to_the_least_loaded_server() -> None:
    async def test() -> None:
        pool, servers = make_pool(3)
        for server in servers[:2]:
            server.requests = 1
        assert pool.choose(b"") is servers[2]
        assert pool.choose(b"", avoid=[servers[2]]) in servers[:2]

    run(test)


def test_other_prefixes_stay_when_a_server_leaves() -> None:
    async def test() -> None:
        pool, servers = make_pool(4)
        digests = [bytes([number]) for number in range(100)]
        before = {digest: pool.choose(digest) for digest in digests}
        counts = Counter(server for server in before.values() if server)
        assert min(counts.values()) > 10
        pool.set_state(servers[0], State.DRAINING)
        for digest in digests:
            if before[digest] is not servers[0]:
                assert pool.choose(digest) is before[digest]

    run(test)


def test_a_request_without_a_server_waits_for_one() -> None:
    async def test() -> None:
        pool, (server,) = make_pool(1)
        loop = asyncio.get_running_loop()
        pool.set_state(server, State.DRAINING)
        waiting = asyncio.ensure_future(pool.take(b"", until_s=loop.time() + 60))
        await asyncio.sleep(0)
        pool.set_state(server, State.READY)
        assert await waiting is server
        pool.set_state(server, State.DRAINING)
        with pytest.raises(Refused, match="no server is ready"):
            await pool.take(b"", until_s=loop.time())

    run(test)


def test_an_unlisted_server_is_forgotten_with_its_last_stream() -> None:
    async def test() -> None:
        pool, (server,) = make_pool(1)
        await pool.take(b"", until_s=0)
        pool.set_addresses([])
        assert pool.all() == [server]
        assert pool.ready() == []
        pool.set_state(server, State.READY)
        assert pool.ready() == []
        pool.give_back(server)
        assert pool.all() == []

    run(test)


BAD_SERVERS = ["", "host", "host:", ":80", "host:x", "host:70000", "a:1,,b:2"]
BAD_SERVERS += ["vllm..serving:80", f"{'v' * 64}.serving:80"]


@pytest.mark.parametrize("text", BAD_SERVERS)
def test_servers_need_a_host_and_a_port(text: str) -> None:
    with pytest.raises(InputError, match="a server has no host or port"):
        parse_servers(text)


def test_servers_are_read_from_names_and_from_an_endpoints_file() -> None:
    assert parse_servers("a:1, [::1]:2") == [("a", 1), ("::1", 2)]
    socket = {"socket_address": {"address": "10.0.0.1", "port_value": 8000}}
    entry = {
        "endpoint": {
            "address": socket,
            "health_check_config": {"port_value": 8081},
        }
    }
    document = {"resources": [{"endpoints": [{"lb_endpoints": [entry]}]}]}
    assert read_endpoints(document, 0) == {Address("10.0.0.1", 8000, 8081)}
    assert read_endpoints(document, 9) == {Address("10.0.0.1", 8000, 9)}
