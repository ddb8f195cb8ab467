"""Elastic gangs of real processes: whatever is lost or comes, the exact run ends in the bits of an
undisturbed one.
"""

import json
import os
import re
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from holdfast.checkpoint import Tuning
from holdfast.checkpoint.errors import NotDurable
from holdfast.cost.receipt import receipt
from holdfast.ledger.events import read_folder
from holdfast.ledger.job_ledger import job_ledgers
from holdfast.training.elastic.gang import ElasticGang
from holdfast.training.gang.member_addresses import Address, Places
from holdfast.training.trainer.metrics import SLOW
from holdfast.vocabulary.environment import (
    ENV_COMPLETION_INDEX,
    ENV_GANG_NODES,
    ENV_GANG_PORT,
    ENV_KEY_FILE,
)
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT, EXIT_COMPLETE, EXIT_PREEMPTED, EXIT_RETRY
from workloads.library.tests.processes import children, kill_family
from workloads.library.tests.training.elastic import gangs
from workloads.library.tests.training.elastic.conftest import Make
from workloads.library.tests.training.elastic.gangs import Gang, free_ports, free_run

pytestmark = pytest.mark.process

KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def reference_digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of a run that is started from nothing."""
    return Gang(tmp_path_factory.mktemp("undisturbed"), nodes=1).compute_digest()


class Stranger:
    """Has a way to a gang's ports and not the key of its run. Reads what the stores give away, uses
    it as the secret of questions, and writes garbage wherever it can.
    """

    def __init__(self, nodes: tuple[Address, ...]) -> None:
        self._nodes = nodes
        self._ended = threading.Event()
        self.close = self._ended.set
        self.found: list[str] = []
        """Keys of stores."""
        self.answers: list[int] = []
        for work in (self._connect_and_read, self._ask, self._noise):
            threading.Thread(
                target=self._work,
                args=(work,),
                daemon=True,
            ).start()

    def _work(self, work: Callable[[str, int], None]) -> None:
        while not self._ended.wait(0.2):
            for host, port in self._nodes:
                with suppress(OSError, RuntimeError, ValueError, HTTPException):
                    work(host, port)

    def _connect_and_read(self, host: str, port: int) -> None:
        store = TCPStore(
            host,
            port + 1,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=1),
        )
        self.found += store.list_keys()
        for key in self.found[-20:]:
            store.set(key, secrets.token_bytes(64))

    def _ask(self, host: str, port: int) -> None:
        secret = secrets.token_hex(32)
        body = {
            "index": 0,
            "incarnation": "x",
            "epoch": 1,
        }
        headers = {"Holdfast-Nonce": secret[:32], "Holdfast-Seal": secret}
        for path in ("/status", "/report", "/join"):
            with closing(HTTPConnection(host, port, timeout=1)) as connection:
                connection.request("POST", path, json.dumps(body), headers)
                self.answers.append(connection.getresponse().status)

    def _noise(self, host: str, port: int) -> None:
        for above in (0, 1):
            with socket.create_connection((host, port + above), timeout=1) as connection:
                connection.sendall(secrets.token_bytes(4096))


def test_gang_survives_a_death_and_admits_a_replacement_despite_strangers(
    make: Make,
    reference_digest: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "key").write_text(secrets.token_hex(32))
    monkeypatch.setenv(ENV_KEY_FILE, str(tmp_path / "key"))
    gang = make(gate_step=25)
    with closing(Stranger(gang.addresses)) as visitor:
        gang.start(1, 2)
        gang.start(0, kill_at="gang.reduce:12")
        assert gang.ended(0) == KILLED
        # one that is back before they go on is taken in at once
        gang.until(lambda: 2 in gang.sizes())
        gang.start(0)
        gang.until(lambda: gang.has_come(0, lead=1))
        gang.open_gate()
        gang.ends_with(reference_digest, 3, 2, 3)
    assert not visitor.found, "what a store holds is no stranger's business"
    assert visitor.answers
    assert 200 not in visitor.answers
    assert len(gang.of("restore")) == 1, "neither survivors nor the newcomer need a checkpoint"
    (ledger,) = job_ledgers(read_folder(gang.folder).events)
    assert receipt([ledger], 1.0, 3.0).missing_node_hours > 0, (
        "a place without a node is time of its own"
    )


def test_a_member_that_is_slower_than_the_others_is_named(make: Make) -> None:
    slow = [[1, step, 1.0] for step in range(15)]
    gang = make(
        steps=15,
        every=15,
        slow=slow,
        pace_s=0.05,
    )
    gang.start(0, 1, 2)
    assert set(gang.all_ended()) == {EXIT_COMPLETE}, gang.logs()
    named = []
    for line in gang.of("window"):
        named.append((line.get("slowest_rank"), line.get("slowest_by", 0.0)))
    assert {rank for rank, _ in named} == {1}, named
    for _, ratio in named:
        assert ratio > SLOW, named
    assert gang.logs().count("rank 1 takes") == 1


def test_loss_while_the_gang_connects_costs_less_than_a_silent_peer(
    make: Make, reference_digest: str
) -> None:
    gang = make(connect_s=3.0, silent_s=600.0, gate_step=15)
    gang.start(0, 1)
    gang.start(2, kill_at="gang.connect")
    gang.until(gang.committed)
    # Connected, a member may compute for longer than connecting may take.
    gang.signal(1, signal.SIGSTOP)
    gang.open_gate()
    gang.until(lambda: gang.silent_s > 5.0)
    gang.signal(1, signal.SIGCONT)
    gang.ends_with(reference_digest, 2, codes={2: KILLED})
    assert {line["attempt"] for line in gang.of("start")} == {3}


def test_a_notice_costs_no_step_and_ends_with_143(make: Make, reference_digest: str) -> None:
    gang = make(gate_step=15)
    gang.start(0, 1, 2)
    gang.until(gang.committed)
    gang.signal(0, signal.SIGTERM)
    gang.open_gate()
    gang.ends_with(reference_digest, 3, 2, codes={0: EXIT_PREEMPTED})


def test_frozen_member_is_lost_before_a_slow_one_and_rejoins_as_a_newcomer(
    make: Make, reference_digest: str
) -> None:
    """Silence is timed in test_failure_detector.py."""
    gang = make(gate_step=[12, 25], silent_s=2.0, lag_s=3600.0)
    gang.start(0, 1, 2)
    gang.until(lambda: gang.at_gate(12, 0, 1, 2))
    gang.signal(0, signal.SIGSTOP)
    gang.open_gate(12)
    gang.until(lambda: 2 in gang.sizes())
    assert (
        "member 0 has not answered for 10 s, although its machine does, and counts as lost"
        in gang.logs()
    )
    gang.signal(0, signal.SIGCONT)
    gang.until(lambda: gang.has_come(0, lead=1))
    gang.open_gate()
    gang.ends_with(reference_digest, 3, 2, 3)


def test_answering_member_is_waited_for_and_the_limit_grows(
    make: Make, reference_digest: str
) -> None:
    """Checks a gang with a member that evaluates, for longer than a silent one is waited for; then
    for longer than any, and again.
    """
    gang = make(
        silent_s=1.2,
        lag_s=5.0,
        slow=[(0, 5, 2.0), (1, 12, 7.0), (1, 22, 7.0)],
    )
    gang.start(0, 1, 2)
    gang.ends_with(reference_digest)
    # A starved machine may repeat other steps. Without a longer limit step 12 would fail again.
    assert set(gang.sizes()) == {3}, gang.logs()
    assert len(gang.sizes()) > 1, gang.logs()
    assert "step 12 is repeated and no member was lost" in gang.logs()
    assert "they now wait 10 s" in gang.logs()
    assert "waiting for member 1, which answers" in gang.logs()


def test_too_few_members_release_their_nodes(make: Make) -> None:
    gang = make(
        nodes=2,
        min_nodes=2,
        hold_s=1.0,
        steps=100_000,
    )
    gang.start(0)
    gang.start(1, kill_at="gang.reduce:5")
    assert gang.ended(0) == EXIT_RETRY, gang.logs()
    assert gang.of("commit"), "what was done is stored before the node goes"


def test_losing_a_node_with_two_processes_costs_no_bit(make: Make, reference_digest: str) -> None:
    gang = make(nodes=2, gate_step=25)
    port = str(free_run(8))
    for node in (0, 1):
        program = [
            sys.executable,
            "-m",
            gangs.CHILD,
            json.dumps({**gang.settings, "index": 0}),
        ]
        ranks = [
            sys.executable,
            "-m",
            "holdfast",
            "train",
            "ranks",
            "--processes",
            "2",
            "--",
            *program,
        ]
        gang.launch(
            node,
            ranks,
            **{
                ENV_GANG_NODES: "2",
                ENV_GANG_PORT: port,
                ENV_COMPLETION_INDEX: str(node),
            },
        )
    gang.until(lambda: gang.at_gate(25, *range(4)))
    kill_family(gang.processes[0].pid)
    gang.open_gate()
    gang.ends_with(reference_digest, codes={0: KILLED})
    assert {line["of"] for line in gang.of("resized")} == {2}
    assert gang.sizes()[0] == 2
    world_sizes = {line["world_size"] for line in gang.of("start")}
    assert world_sizes == {4, 2}


def test_a_storage_that_refuses_a_regrouping_costs_no_job(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = make(gate_step=15, hold_s=3.0)
    gang.start(0, 1, 2)
    # which is not the step that was committed
    gang.until(lambda: gang.committed() and gang.at_gate(15, 0, 1, 2))
    gang.signal(2, signal.SIGKILL)
    epochs = gang.checkpoints / "elastic" / "gang"
    epochs.rename(gang.folder / "away")
    epochs.touch()  # a file in the place of a folder: refused, also to root
    gang.open_gate()
    assert {gang.ended(0), gang.ended(1)} == {EXIT_RETRY}, gang.logs()
    departures = []
    for place in (0, 1):
        departures.append(re.findall(r"leaving at step (\d+)", gang.read_log(place)))
    assert departures[0] == departures[1], gang.logs()
    step = int(departures[0][0])
    assert step > 10, gang.logs()
    loss = f"the newest checkpoint is of step 10: {step - 10} steps are lost"
    assert f"{loss}, unless another member continues" in gang.read_log(0)
    # A place that comes back finds no storage at all: it was good when this place began for the
    # first time.
    gang.checkpoints.rename(gang.folder / "all-away")
    gang.checkpoints.touch()
    gang.start(0)
    assert gang.ended(0) == EXIT_RETRY, gang.logs()
    monkeypatch.setattr(gangs, "ATTEMPT", "")
    gang.start(0)
    assert gang.ended(0) == EXIT_BAD_INPUT, gang.logs()


def test_a_storage_that_comes_back_in_time_costs_a_wait(make: Make, reference_digest: str) -> None:
    gang = make(gate_step=15)
    gang.start(0, 1, 2)
    gang.until(gang.committed)
    epochs = gang.checkpoints / "elastic" / "gang"
    away = gang.folder / "away"
    epochs.rename(away)
    epochs.touch()
    gang.signal(2, signal.SIGKILL)
    gang.open_gate()
    gang.until(lambda: "cannot be stored" in gang.logs())
    epochs.unlink()
    # The lead may store the next epoch at any moment from now on.
    epochs.mkdir(exist_ok=True)
    for epoch in away.iterdir():
        epoch.rename(epochs / epoch.name)
    gang.ends_with(reference_digest, codes={2: KILLED})


def test_member_with_another_total_is_rejected(make: Make, reference_digest: str) -> None:
    gang = make(nodes=2, gate_step=15, gather_s=1.0)
    gang.start(0)
    gang.until(lambda: gang.at_gate(15, 0))  # before it, it would be taken in at once
    gang.start(1, steps=60)
    gang.until(lambda: gang.joining(1))
    gang.open_gate()
    gang.ends_with(reference_digest, codes={1: EXIT_BAD_INPUT})
    assert "60 steps here, 40 at member 0" in gang.logs()


def one_node(folder: Path, model: nn.Module | None = None, **settings: Any) -> ElasticGang:
    model = nn.Linear(2, 2) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    places = Places(nodes=(("127.0.0.1", free_ports(1)[0]),), index=0)
    return ElasticGang(
        str(folder),
        {"model": model, "optimizer": optimizer},
        run="run",
        places=places,
        **settings,
    )


def train(gang: ElasticGang, steps: int) -> None:
    with gang:
        for _ in gang.steps(steps):
            gang.reduce()


def test_finish_waits_for_the_last_commit_as_long_as_configured(tmp_path: Path) -> None:
    before = set(children(os.getpid()))
    uploaders: set[int] = set()
    gang = one_node(tmp_path, tuning=Tuning(commit_timeout_s=0.0))
    try:
        with pytest.raises(NotDurable), gang:
            uploaders = set(children(os.getpid())) - before
            for uploader in uploaders:
                os.kill(uploader, signal.SIGSTOP)  # which could be faster than this process
            for _ in gang.steps(2):
                gang.reduce()
    finally:
        for uploader in uploaders & set(children(os.getpid())):
            os.kill(uploader, signal.SIGKILL)
    assert uploaders


def test_first_commit_deletes_a_half_written_save(tmp_path: Path) -> None:
    stale = tmp_path / "run" / "step-0000000007" / "an-earlier-lead" / "rank-00000.shard-00000"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"half")
    train(one_node(tmp_path), 1)
    assert not stale.exists()
