"""Tests that evictions and roll-outs lose no request, behind a real Envoy with its rendered
configuration.
"""

import asyncio
import contextlib
import json
import socket
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.drill.serving import fleet as fleets
from holdfast.drill.serving.fleet import HOST, Fleet, Replica, free_port, holdfast_server
from holdfast.drill.serving.load import Load
from holdfast.inference.proxy.endpoints import Endpoint, discovery, write
from holdfast.manifests.envoy import CLUSTER, PROXY_MEMORY_MIB, Proxy, bootstrap
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from tests.workloads.manifests.rendered import find_object
from workloads.library.tests.drill.field_fleet import FieldFleet
from workloads.library.tests.inference.server.serving import INFER, PREDICTORS, head, texts

RATE = 50.0
PREDICTOR = f"{PREDICTORS}:gpu_like"
BODY = texts("a request")


def under(fleet: Fleet, story: Callable[[Load], object] = lambda _: None) -> Load:
    """Runs the story under load, which begins a second earlier, and requires 200 for each request.

    Returns the load.
    """
    load = Load(HOST, fleet.port, INFER, texts("a request"))
    with load.asking(RATE):
        wait_for_answers(fleet)
        story(load)
    assert load.codes == {"200": load.requests}
    return load


def wait_for_first_tries(fleet: Fleet) -> None:
    """Waits until a second of requests was answered by the server that was asked first.

    The threads of the proxy learn one after the other that a server is not healthy.
    """
    retries = -1.0
    while retries != fleet.stat("upstream_rq_retry"):
        retries = fleet.stat("upstream_rq_retry")
        wait_for_answers(fleet)


def wait_for_answers(fleet: Fleet) -> None:
    """Waits until a second of requests was answered."""
    last = fleet.stat("upstream_rq_2xx") + RATE
    fleet.until(lambda: fleet.stat("upstream_rq_2xx") > last, "a second of answers")


@pytest.fixture
def fleet(tmp_path: Path) -> FieldFleet:
    return FieldFleet(
        folder=tmp_path,
        owner=f"test:{tmp_path}",
        command=holdfast_server(PREDICTOR),
    )


@pytest.fixture
def patient_fleet(tmp_path: Path) -> FieldFleet:
    """Has three times as long for each request, and takes no pause of a busy machine for a hang."""
    window_s = 30
    return FieldFleet(
        folder=tmp_path,
        owner=f"test:{tmp_path}",
        command=holdfast_server(PREDICTOR, "--window", str(window_s)),
        window_s=window_s,
    )


@pytest.mark.process
def test_an_eviction_and_a_roll_out_lose_no_request_and_need_no_retry(
    patient_fleet: FieldFleet,
) -> None:
    fleet = patient_fleet
    with fleet.running(3):
        evicted, rolled, _ = fleet.replicas

        def story(_: Load) -> None:
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
        assert fleet.stat("upstream_rq_2xx") == fleet.count_answers() == load.requests
        assert fleet.exits == [143, 143]


@pytest.mark.process
def test_a_killed_server_and_broken_models_lose_no_request(patient_fleet: FieldFleet) -> None:
    """Kills a server, and then breaks only the predicting processes of two servers."""
    fleet = patient_fleet
    with fleet.running(3):
        victim, hung, killed = fleet.replicas

        def story(_: Load) -> None:
            fleet.kill(victim)
            fleet.until(lambda: victim not in fleet.replicas, "its replacement")
            fleet.settle()
            # A request that the dead server refused counts as tried. Computed by the model that
            # hangs, it would get 504: the proxy asks a dead server until three checks have failed.
            wait_for_first_tries(fleet)
            fleet.freeze_model(hung, 60.0)  # its server ends it, as soon as no client waits for it
            fleet.until(lambda: not hung.ready, "the hanging model to be noticed")
            fleet.until(lambda: fleet.stat("membership_healthy") < 3, "the proxy to notice it")
            # One model after the other: a request that is lost with two of them may be the cause,
            # and is not tried again.
            fleet.until(lambda: hung.ready, "it to go on")
            fleet.settle()
            wait_for_first_tries(fleet)
            fleet.kill_model(killed)
            wait_for_answers(fleet)
            fleet.settle()

        under(fleet, story)


@pytest.mark.process
def test_late_endpoints_and_a_silent_server_lose_no_request(fleet: FieldFleet) -> None:
    """Endpoints follow five seconds late: a server goes on accepting for just as long."""
    fleet.endpoint_delay_s = 5.0
    with fleet.running(3):
        evicted, silent, _ = fleet.replicas

        def story(_: Load) -> None:
            fleet.evict(evicted)
            fleet.until(lambda: fleet.exits, "the evicted server to leave")
            fleet.settle()
            fleet.freeze(silent, 7.0)
            fleet.until(lambda: not silent.ready, "a probe to be missed")
            fleet.until(lambda: silent.ready, "the next one to be answered")

        under(fleet, story)
        assert fleet.exits == [143]
        pids = {replica.pod.pid for replica in fleet.replicas}
        answered = fleet.count_answers()
        fleet.lose_proxy()
        second_load = under(fleet)
        assert fleet.count_answers() == answered + second_load.requests
        assert {replica.pod.pid for replica in fleet.replicas} == pids, (
            "the servers noticed nothing"
        )


@pytest.mark.process
def test_unfinished_bodies_fit_into_the_proxy_memory(fleet: FieldFleet) -> None:
    """The servers read nothing, so the proxy holds all that clients send."""
    pod = find_object("example", "Deployment", "proxy")["spec"]["template"]["spec"]
    limits = pod["containers"][0]["resources"]["limits"]
    assert limits["memory"] == f"{PROXY_MEMORY_MIB}Mi"
    with fleet.running(2), contextlib.ExitStack() as ends:
        proxy = psutil.Process(fleet.proxy.pid)
        peak_bytes = 0
        for replica in fleet.ready():
            fleet.freeze(replica, 8.0)
        fleet.until(
            lambda: not any(replica.probe() for replica in fleet.replicas), "both to be silent"
        )
        request = memoryview(head(8 * 1024 * 1024) + b"x" * (3 * 1024 * 1024))
        unsent = dict[socket.socket, memoryview]()
        for _ in range(900):
            end = ends.enter_context(socket.create_connection((HOST, fleet.port)))
            end.setblocking(False)
            unsent[end] = request
        while not all(replica.probe() for replica in fleet.replicas):
            for end, data in list(unsent.items()):
                try:
                    count = end.send(data)
                    unsent[end] = data[count:]
                except BlockingIOError:
                    peak_bytes = max(peak_bytes, proxy.memory_info().rss)
                except OSError:
                    del unsent[end]
        assert peak_bytes < PROXY_MEMORY_MIB * 1024 * 1024
        ends.close()
        # It may see both servers while the requests still take all its connections to them.
        for requests in ("upstream_rq_pending_active", "upstream_rq_active"):
            fleet.until(lambda name=requests: fleet.stat(name) == 0, "these requests to be gone")
        fleet.until(lambda: fleet.stat("membership_healthy") == 2, "the proxy to see both again")
        under(fleet)


async def at_one_time(port: int, count: int) -> "Counter[int]":
    """Sends `count` requests together and counts their codes."""
    ends = [await asyncio.open_connection(HOST, port) for _ in range(count)]
    for _, writer in ends:
        writer.write(head(len(BODY)) + BODY)
    lines = await asyncio.gather(*[reader.readline() for reader, _ in ends])
    for _, writer in ends:
        writer.close()
    return Counter(int(line.split()[1]) for line in lines)


@contextlib.contextmanager
def silent_machine() -> Generator[Endpoint]:
    """An endpoint that neither accepts nor refuses connections: its backlog is full."""
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.create_server((HOST, 0), backlog=0))
        machine = Endpoint(address=HOST, port=listener.getsockname()[1])
        for _ in range(8):
            end = sockets.enter_context(socket.socket())
            end.setblocking(False)
            end.connect_ex((HOST, machine.port))
        yield machine


@pytest.mark.process
def test_a_vanished_machine_loses_no_request(patient_fleet: FieldFleet) -> None:
    """The machine looks least loaded: nearly half of the requests wait for it before a retry."""
    fleet = patient_fleet
    with silent_machine() as machine, fleet.running(2):
        living = [replica.endpoint for replica in fleet.ready()]
        for replica in fleet.replicas:
            replica.noticed = True  # a late probe changes no endpoint
        # No health check has missed it yet: a server that lives answers them.
        machines = sorted([machine, *living])
        write(fleet.endpoints_file, discovery(CLUSTER, machines, living[0].port))

        def has_retried() -> bool:
            codes = asyncio.run(at_one_time(fleet.port, 1))
            return codes == {200: 1} and fleet.stat("upstream_rq_retry") > 0

        fleet.until(has_retried, "a retry because the machine does not answer")
        before = fleet.stat("upstream_rq_retry")
        assert asyncio.run(at_one_time(fleet.port, 240)) == {200: 240}
        assert fleet.stat("upstream_rq_retry") - before > 50, (
            "about 100 waited for a connection to it"
        )


class Ending:
    """A pod that has ended when it is looked at again."""

    def __init__(self) -> None:
        self._exit_codes = iter([None])

    @property
    def exit_code(self) -> int | None:
        return next(self._exit_codes, EXIT_PREEMPTED)


class NoticedFleet(Fleet):
    """Its replica gets a notice while it is probed, and answers that it is not ready."""

    changes = 0

    def _is_ready(self, replica: Replica) -> bool:
        replica.noticed = True
        return False

    def _change(self, replica: Replica, ready: bool) -> None:
        self.changes += 1


def test_a_probe_in_flight_at_the_notice_changes_no_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "PROBE_PERIOD_S", 0.0)
    fleet = NoticedFleet(
        folder=tmp_path,
        owner="test",
        command=holdfast_server(PREDICTOR),
        endpoint_delay_s=0.0,
    )
    pod: Any = Ending()
    fleet._probe(Replica(pod, 1, ready=True))
    assert fleet.changes == 1, "the end of the pod"


def test_ports_are_none_that_systems_give_to_other_sockets() -> None:
    assert free_port(4) + 3 < 32_768


def test_tests_use_the_rendered_proxy() -> None:
    """They differ in addresses, the file of endpoints, and the longest request only."""
    rendered = json.loads(find_object("example", "ConfigMap", "proxy")["data"]["envoy.json"])
    proxy = Proxy(endpoints_file="/run/endpoints/servers.json", longest_request_s=7.0)
    assert rendered == bootstrap(proxy)
    assert rendered != bootstrap(replace(proxy, tries=1))
