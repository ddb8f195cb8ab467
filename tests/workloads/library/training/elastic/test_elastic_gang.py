"""Elastic gangs of real processes: whatever is lost or comes, the exact run ends in the bits of an undisturbed one."""

import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.checkpoint.errors import NotDurable
from holdfast.checkpoint.settings import Tuning
from holdfast.contract.exit_codes import EXIT_BAD_INPUT, EXIT_COMPLETE, EXIT_PREEMPTED, EXIT_RETRY
from holdfast.training.elastic.gang import ElasticGang
from tests.workloads.library.training.elastic.gangs import Gang, free_ports

pytestmark = pytest.mark.process

Make = Callable[..., Gang]


@pytest.fixture
def make(tmp_path: Path) -> Generator[Make]:
    made: list[Gang] = []

    def gang(name: str = "gang", **settings: Any) -> Gang:
        made.append(Gang(tmp_path / name, **settings))
        return made[-1]

    yield gang
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of a run on one node that nothing happens to."""
    gang = Gang(tmp_path_factory.mktemp("undisturbed"), nodes=1)
    gang.start(0)
    assert gang.ended(0) == EXIT_COMPLETE, gang.logs()
    (digest,) = gang.digests()
    return digest


@pytest.mark.parametrize("lost", [0, 1])
def test_a_death_is_survived_by_the_others_and_a_replacement_comes_in(make: Make, undisturbed: str, lost: int) -> None:
    gang = make(gate_step=25)
    others = [place for place in range(3) if place != lost]
    gang.start(*others)
    gang.start(lost, kill_at="gang.reduce:12")
    assert gang.ended(lost) == -signal.SIGKILL
    gang.start(lost)
    gang.until(lambda: gang.waiting(lost))
    gang.open_gate()
    assert set(gang.all_ended().values()) == {EXIT_COMPLETE}, gang.logs()
    assert gang.digests() == {undisturbed}, "the sequence of sizes shows in the weights"
    assert gang.sizes() == [3, 2, 3]
    assert len(gang.lines("restore")) == 1, "neither survivors nor the newcomer need a checkpoint"


def test_who_is_lost_while_the_gang_connects_costs_less_than_a_silent_peer(make: Make, undisturbed: str) -> None:
    gang = make(connect_s=3.0, silent_s=600.0, gate_step=15)
    gang.start(0, 1)
    gang.start(2, kill_at="gang.connect")
    assert gang.ended(2) == -signal.SIGKILL
    gang.until(gang.committed)
    # Connected, a member may compute for longer than connecting may take.
    gang.signal(1, signal.SIGSTOP)
    gang.open_gate()
    gang.until(lambda: gang.silence_s() > 5.0)
    gang.signal(1, signal.SIGCONT)
    assert {gang.ended(0), gang.ended(1)} == {EXIT_COMPLETE}, gang.logs()
    assert gang.digests() == {undisturbed}
    assert gang.sizes() == [2]
    assert {line["attempt"] for line in gang.lines("start")} == {3}


def test_a_notice_costs_no_step_and_ends_with_143(make: Make, undisturbed: str) -> None:
    gang = make(gate_step=15)
    gang.start(0, 1, 2)
    gang.until(gang.committed)
    gang.signal(0, signal.SIGTERM)
    gang.open_gate()
    assert gang.ended(0) == EXIT_PREEMPTED
    assert {gang.ended(1), gang.ended(2)} == {EXIT_COMPLETE}, gang.logs()
    assert gang.digests() == {undisturbed}
    assert gang.sizes() == [3, 2]


def test_a_frozen_member_is_left_behind_and_comes_back_as_a_newcomer(make: Make, undisturbed: str) -> None:
    gang = make(silent_s=5.0, gate_step=25)
    gang.start(0, 1, 2)
    gang.until(gang.committed)
    gang.signal(0, signal.SIGSTOP)
    gang.until(lambda: 2 in gang.sizes())
    gang.signal(0, signal.SIGCONT)
    gang.until(lambda: gang.waiting(0))
    gang.open_gate()
    assert set(gang.all_ended().values()) == {EXIT_COMPLETE}, gang.logs()
    assert gang.digests() == {undisturbed}
    assert gang.sizes() == [3, 2, 3]


def test_when_all_leave_the_next_start_goes_on_where_they_were(make: Make, undisturbed: str) -> None:
    gang = make(nodes=2, every=1000, gate_step=15)
    gang.start(0, 1)
    gang.until(lambda: gang.sizes())
    gang.signal(0, signal.SIGTERM)
    gang.signal(1, signal.SIGTERM)
    gang.open_gate()
    assert set(gang.all_ended().values()) == {EXIT_PREEMPTED}, gang.logs()
    assert gang.lines("commit")[-1]["step"] == gang.lines("stop")[-1]["step"]
    gang.start(0, 1)
    assert {gang.ended(0), gang.ended(1)} == {EXIT_COMPLETE}, gang.logs()
    assert gang.digests() == {undisturbed}


def test_too_few_give_their_nodes_back(make: Make) -> None:
    gang = make(nodes=2, min_nodes=2, hold_s=1.0, steps=100_000)
    gang.start(0)
    gang.start(1, kill_at="gang.reduce:5")
    assert gang.ended(0) == EXIT_RETRY, gang.logs()
    assert gang.lines("commit"), "what was done is stored before the node goes"


def test_another_number_of_shards_is_refused(make: Make) -> None:
    first = make(nodes=1, steps=10)
    first.start(0)
    assert first.ended(0) == EXIT_COMPLETE
    second = make(nodes=1, steps=20, shards=12)
    second.start(0)
    assert second.ended(0) == EXIT_BAD_INPUT
    assert "shards" in second.logs()


def one_node(folder: Path, **settings: Any) -> ElasticGang:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    address = ("127.0.0.1", free_ports(1)[0])
    return ElasticGang(
        str(folder), {"model": model, "optimizer": optimizer}, run="run", nodes=(address,), index=0, **settings
    )


def trained(gang: ElasticGang, steps: int) -> None:
    with gang:
        for _ in gang.steps(steps):
            gang.reduce()


def test_the_end_waits_for_the_last_commit_as_long_as_the_user_has_set(tmp_path: Path) -> None:
    with pytest.raises(NotDurable):
        trained(one_node(tmp_path, tuning=Tuning(commit_timeout_s=0.0)), 2)


def test_what_an_earlier_lead_left_half_written_goes_at_the_first_commit(tmp_path: Path) -> None:
    left = tmp_path / "run" / "step-0000000007" / "an-earlier-lead" / "rank-00000.shard-00000"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    trained(one_node(tmp_path), 1)
    assert not left.exists()
