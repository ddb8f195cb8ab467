"""One job on two nodes: either may be lost, go silent, or be noticed."""

import os
import signal
import socket
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import DistError, HashStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous.api import RendezvousError

from holdfast.support.errors import InputError
from holdfast.training.trainer import launch, rendezvous
from holdfast.training.trainer.config import TrainConfig
from holdfast.training.trainer.launch import UNNOTICED_EXIT_DELAY_S
from holdfast.vocabulary.environment import ENV_KEY_FILE
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.processes import until
from workloads.library.tests.training.elastic.gangs import free_ports
from workloads.library.tests.training.nodes import Nodes, Pods
from workloads.library.tests.training.runs import PATIENCE_S, STEPS, Run, power_loss

pytestmark = pytest.mark.process

ELSEWHERE = "[100::1]:29500"  # the discard prefix: no machine has it


def config(rendezvous: str) -> TrainConfig:
    return TrainConfig(
        checkpoints="x",
        nodes=2,
        rendezvous=rendezvous,
        peer_timeout_s=2,
    )


def test_a_first_node_that_never_comes_is_worth_another_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendezvous, "RENDEZVOUS_S", 0.0)
    with pytest.raises(RendezvousError, match="did not answer"):
        rendezvous.rendezvous_handler(config(ELSEWHERE))


def test_taken_port_on_this_node_is_bad_input() -> None:
    def hang_up_on_all() -> None:
        with suppress(OSError):
            while True:
                other.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=hang_up_on_all, daemon=True).start()
        with pytest.raises(InputError, match="rendezvous cannot be opened") as caught:
            rendezvous.rendezvous_handler(config(f"127.0.0.1:{other.getsockname()[1]}"))
    assert "free port" in caught.value.lines()


def test_agent_without_the_runs_key_is_not_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    here = f"127.0.0.1:{port}"
    (tmp_path / "key").write_text("k" * 64)

    def agent(key: str) -> Future[Any]:
        monkeypatch.setenv(ENV_KEY_FILE, key)
        handler = rendezvous.rendezvous_handler(config(here))
        joined: Future[Any] = Future()

        def join() -> None:
            try:
                joined.set_result(handler.next_rendezvous())
            except RendezvousError as error:  # minutes after this test, in the midst of another
                joined.set_exception(error)

        # No pool: the agent that is never joined waits longer than this test, and must not be
        # waited for.
        threading.Thread(target=join, daemon=True).start()
        return joined

    key = str(tmp_path / "key")
    first = agent(key)
    # this machine is the first node's
    with pytest.raises(InputError, match="rendezvous cannot be opened"):
        agent("")
    # nor does any client of torch's get to what agents unpickle
    with pytest.raises((DistError, RuntimeError)):
        TCPStore(
            "127.0.0.1",
            port,
            is_master=False,
            timeout=timedelta(seconds=1),
        )
    second = agent(key)
    infos = [first.result(PATIENCE_S), second.result(PATIENCE_S)]
    assert {info.rank for info in infos} == {0, 1}
    assert {info.bootstrap_store_info.master_addr for info in infos} == {"127.0.0.1"}, (
        "no port but the gate's"
    )


def test_agent_takes_the_signals_back_from_an_old_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_workers(agent: LocalElasticAgent, group: object) -> dict[int, int]:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return {0: 1}

    monkeypatch.setattr(LocalElasticAgent, "_start_workers", start_workers)
    agent: Any = object.__new__(launch.Agent)
    shutdown = launch.notices.of_process()
    try:
        handler = signal.getsignal(signal.SIGTERM)
        assert agent._start_workers(None) == {0: 1}
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        shutdown.uninstall()


def test_noticed_agent_does_not_wait_for_a_lost_node(monkeypatch: pytest.MonkeyPatch) -> None:
    notice = SimpleNamespace(requested=False)
    monkeypatch.setattr(launch.notices, "of_process", lambda: notice)
    monkeypatch.setattr(launch, "EXIT_BARRIER_S", 0.1)
    agent: Any = object.__new__(launch.Agent)
    agent._store = HashStore()
    agent._exit_barrier_timeout = 3600
    agent._worker_group = SimpleNamespace(state="SUCCEEDED", group_world_size=2)
    barrier = threading.Thread(target=agent._exit_barrier, daemon=True)
    barrier.start()
    until(lambda: agent._store.num_keys() > 0, "it has come itself")
    notice.requested = True
    barrier.join(PATIENCE_S)
    assert not barrier.is_alive()


def test_first_node_recognizes_its_address_and_its_name_before_dns_does() -> None:
    for host in ("127.0.0.1", "localhost", socket.gethostname()):
        assert rendezvous.is_local(host)
    assert not rendezvous.is_local("100::1")
    assert rendezvous.is_named("gang-workers-0-1.gang", "gang-workers-0-1.gang.ns.svc")
    peers = [
        ("gang-workers-0-0.gang", "gang-workers-0-1"),
        ("127.0.0.1", "127"),
        ("localhost", "localhost"),
    ]
    for host, hostname in peers:
        assert not rendezvous.is_named(host, hostname)


@pytest.mark.timeout(900)  # two agents a start
def test_losing_either_node_is_retried_and_a_notice_on_one_stops_both(
    tmp_path: Path, server: ForkServer, reference_run: Run
) -> None:
    nodes = Nodes(tmp_path, server=server)
    nodes.hold_before(STEPS - 2)

    def lose(pods: Pods, number: int) -> None:
        power_loss(pods[number])
        nodes.release()

    assert nodes.ended(12, lambda pods: lose(pods, 1)) == [75, 137], nodes.log()
    nodes.hold_before(STEPS - 2)
    assert nodes.ended(18, lambda pods: lose(pods, 0)) == [137, 75], (
        "the node where all met is lost"
    )
    nodes.hold_before(STEPS - 2)
    assert nodes.ended(25, lambda pods: os.kill(pods[1].pid, signal.SIGTERM)) == [143, 143], (
        nodes.log()
    )
    last_exit = nodes.runs[0].of("exit")[-1]
    assert time.time() - last_exit["t"] > UNNOTICED_EXIT_DELAY_S - 1, (
        "the pod that was noticed is the first to be seen to fail"
    )
    stops = [stop for run in nodes.runs for stop in run.of("stop")]
    steps = [stop["step"] for stop in stops]
    assert steps == [nodes.furthest], "logged once, by the rank that leads"
    nodes.release()
    assert nodes.complete() == [0, 0], nodes.log()
    assert {run.digest for run in nodes.runs} == {reference_run.digest}


@pytest.mark.timeout(900)
def test_a_first_node_that_goes_silent_is_given_up_and_the_run_retried(
    tmp_path: Path, server: ForkServer
) -> None:
    """A machine without power sends no farewell: nothing is refused, nothing is reset, nothing
    answers.
    """
    nodes = Nodes(tmp_path, "--set", "peer_timeout_s=15", server=server)
    nodes.hold_before(STEPS - 2)
    with nodes.started() as pods:
        nodes.wait_for_step(pods, 5)
        os.killpg(pods[0].pid, signal.SIGSTOP)
        nodes.release()
        assert pods[1].wait(PATIENCE_S) == 75, nodes.log()
