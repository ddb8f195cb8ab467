"""Servers behind a real Envoy, with the configuration that is rendered: evictions and roll-outs
lose no request.
"""

import asyncio
import contextlib
import json
import socket
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from holdfast.drill.serving.fleet import HOST, Fleet, holdfast_server
from holdfast.drill.serving.load import Load
from holdfast.inference.proxy.endpoints import Endpoint, discovery, write
from holdfast.manifests.envoy import CLUSTER, PROXY_MEMORY_MIB, Proxy, bootstrap
from tests.workloads.manifests.rendered import named
from workloads.library.tests.drill.field_fleet import FieldFleet
from workloads.library.tests.inference.server.serving import INFER, PREDICTORS, head, texts

RATE = 50.0
OURS = holdfast_server(f"{PREDICTORS}:gpu_like")
BODY = texts("a request")


def under(fleet: Fleet, story: Callable[[], object] = lambda: None) -> Load:
    """The load, from a second before the story to after its end. Every request is answered well."""
    load = Load(HOST, fleet.port, INFER, texts("a request"))
    with load.asking(RATE):
        fleet.until(lambda: fleet.stat("upstream_rq_2xx") > RATE, "a second of answers")
        story()
    assert load.codes == {"200": load.asked}
    return load


@pytest.fixture
def fleet(tmp_path: Path) -> FieldFleet:
    return FieldFleet(
        folder=tmp_path,
        owner=f"test:{tmp_path}",
        command=OURS,
    )


@pytest.mark.process
def test_an_eviction_and_a_roll_out_lose_no_request_and_need_no_retry(fleet: FieldFleet) -> None:
    with fleet.running(3):
        evicted, rolled, _ = fleet.ready()

        def story() -> None:
            fleet.evict(evicted)
            fleet.until(lambda: not evicted.ready, "the evicted server's endpoint to go")
            assert evicted.pod.exit_code is not None, (
                "no probe takes it out, as on a real kubelet: only its end does"
            )
            fleet.roll_out(rolled)
            fleet.until(lambda: len(fleet.exits) == 2, "both to be gone")
            fleet.settle()

        load = under(fleet, story)
        assert fleet.stat("upstream_rq_retry") == 0
        assert fleet.stat("upstream_rq_2xx") == fleet.answered() == load.asked
        assert fleet.exits == [143, 143]


@pytest.mark.process
def test_a_killed_server_a_model_that_hangs_and_one_that_is_killed_lose_no_request(
    fleet: FieldFleet,
) -> None:
    """With our breaker. The servers of the models live and answer; only the predicting processes do
    not.
    """
    with fleet.running(3):
        victim, hung, killed = fleet.ready()

        def story() -> None:
            fleet.kill(victim)
            fleet.until(lambda: victim not in fleet.replicas, "its replacement")
            fleet.settle()
            fleet.freeze_model(hung, 6.0)
            fleet.until(lambda: not hung.ready, "the hanging model to be noticed")
            fleet.kill_model(killed)
            fleet.until(lambda: hung.ready, "it to go on")
            fleet.settle()

        under(fleet, story)


@pytest.mark.process
def test_late_endpoints_a_missed_probe_and_a_silent_server_lose_nothing_and_a_lost_proxy_no_server(
    fleet: FieldFleet,
) -> None:
    """Endpoints that follow five seconds late, as long as a server goes on accepting."""
    fleet.endpoint_delay_s = 5.0
    with fleet.running(3):
        evicted, silent, _ = fleet.ready()

        def story() -> None:
            fleet.evict(evicted)
            fleet.until(lambda: fleet.exits, "the evicted server to leave")
            fleet.settle()
            fleet.freeze(silent, 7.0)
            fleet.until(lambda: not silent.ready, "a probe to be missed")
            fleet.until(lambda: silent.ready, "the next one to be answered")

        under(fleet, story)
        assert fleet.exits == [143]
        pids = {replica.pod.pid for replica in fleet.replicas}
        answered = fleet.answered()
        fleet.lose_proxy()
        again = under(fleet)
        assert fleet.answered() == answered + again.asked
        assert {replica.pod.pid for replica in fleet.replicas} == pids, (
            "the servers noticed nothing"
        )


@pytest.mark.process
def test_unfinished_bodies_do_not_end_a_proxy_of_the_memory_that_is_rendered(
    fleet: FieldFleet,
) -> None:
    """Before servers that read nothing: all that clients send is in the proxy."""
    limit = named("example", "Deployment", "proxy")["spec"]["template"]["spec"]["containers"][0][
        "resources"
    ]["limits"]
    assert limit["memory"] == f"{PROXY_MEMORY_MIB}Mi"
    with fleet.running(2), contextlib.ExitStack() as ends:
        proxy = psutil.Process(fleet.proxy.pid)
        most = 0
        for replica in fleet.ready():
            fleet.freeze(replica, 8.0)
        fleet.until(
            lambda: not any(replica.probe() for replica in fleet.replicas), "both to be silent"
        )
        whole = memoryview(head(8 * 1024 * 1024) + b"x" * (3 * 1024 * 1024))
        left = dict[socket.socket, memoryview]()
        for _ in range(900):
            end = ends.enter_context(socket.create_connection((HOST, fleet.port)))
            end.setblocking(False)
            left[end] = whole
        while not all(replica.probe() for replica in fleet.replicas):
            for end in list(left):
                try:
                    left[end] = left[end][end.send(left[end]) :]
                except BlockingIOError:
                    most = max(most, proxy.memory_info().rss)
                except OSError:
                    del left[end]
        assert most < PROXY_MEMORY_MIB * 1024 * 1024
        ends.close()
        fleet.until(lambda: fleet.stat("membership_healthy") == 2, "the proxy to see both again")
        under(fleet)


async def at_one_time(port: int, count: int) -> "Counter[int]":
    """The codes of `count` requests that are sent together."""
    ends = [await asyncio.open_connection(HOST, port) for _ in range(count)]
    for _, writer in ends:
        writer.write(head(len(BODY)) + BODY)
    lines = await asyncio.gather(*[reader.readline() for reader, _ in ends])
    for _, writer in ends:
        writer.close()
    return Counter(int(line.split()[1]) for line in lines)


@contextlib.contextmanager
def vanished_machine() -> Generator[Endpoint]:
    """No connection to it is made or refused: its kernel has taken all that it takes, and nobody
    accepts one.
    """
    with contextlib.ExitStack() as open_until_then:
        listener = open_until_then.enter_context(socket.create_server((HOST, 0), backlog=0))
        machine = Endpoint(address=HOST, port=listener.getsockname()[1])
        for _ in range(8):
            end = open_until_then.enter_context(socket.socket())
            end.setblocking(False)
            end.connect_ex((HOST, machine.port))
        yield machine


@pytest.mark.process
def test_a_machine_that_vanishes_without_a_reset_loses_none_of_240_requests_at_one_time(
    fleet: FieldFleet,
) -> None:
    """It looks least loaded, so nearly half wait for a connection to it, and then go to another
    server.
    """
    with vanished_machine() as machine, fleet.running(2):
        living = [replica.endpoint for replica in fleet.ready()]
        for replica in fleet.replicas:
            replica.noticed = True  # a late probe changes no endpoint
        # No health check has missed it yet: a server that lives answers them.
        write(fleet.endpoints_file, discovery(CLUSTER, sorted([machine, *living]), living[0].port))

        def asked_it() -> bool:
            return (
                asyncio.run(at_one_time(fleet.port, 1)) == {200: 1}
                and fleet.stat("upstream_rq_retry") > 0
            )

        fleet.until(asked_it, "a request that is retried because the machine is gone")
        before = fleet.stat("upstream_rq_retry")
        assert asyncio.run(at_one_time(fleet.port, 240)) == {200: 240}
        assert fleet.stat("upstream_rq_retry") - before > 50, (
            "about 100 waited for a connection to it"
        )


def test_the_proxy_of_the_tests_is_the_one_that_is_rendered() -> None:
    """But for addresses, the file of endpoints, and the time of its window."""
    rendered = json.loads(named("example", "ConfigMap", "proxy")["data"]["envoy.json"])
    assert rendered == bootstrap(
        Proxy(endpoints_file="/run/endpoints/servers.json", longest_request_s=7.0)
    )
    assert rendered != bootstrap(
        replace(Proxy(endpoints_file="/run/endpoints/servers.json", longest_request_s=7.0), tries=1)
    )
