"""A gang of a sharded state: lost nodes are waited for, and the ranks go on from the memory of those that are left."""

import signal
from collections.abc import Iterator

import pytest

from holdfast.contract.exit_codes import EXIT_PREEMPTED, EXIT_RETRY
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.elastic.conftest import MakeSharded
from workloads.library.tests.training.elastic.sharded_gangs import NODES, WAIT_S, ShardedGang, damage, staging_memories

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


@pytest.fixture
def make(make_sharded: MakeSharded) -> MakeSharded:
    return make_sharded


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, server: ForkServer) -> Iterator[str]:
    gang = ShardedGang(tmp_path_factory.mktemp("undisturbed") / "gang", server, copies=0)
    try:
        gang.start(*range(NODES))
        assert gang.all_ended() == [0] * NODES, gang.logs()
        yield gang.digest
    finally:
        gang.close()


def test_a_lost_node_is_replaced_and_the_gang_goes_on_from_memory(make: MakeSharded, undisturbed: str) -> None:
    gang = make(gate_step=15)
    gang.start(*range(NODES))
    gang.until(lambda: gang.copied(15))
    survivors = {place: gang.processes[place].pid for place in (0, 2)}
    gang.lose(1)
    # Not one byte of a shard can come from there: step 10 is committed, and its shards are gone.
    assert gang.shards_in_bucket()
    for shard in gang.shards_in_bucket():
        shard.unlink()
    gang.open_gate()
    gang.start(1)
    assert gang.all_ended() == [0] * NODES, gang.logs()
    assert [event["step"] for event in gang.of("restore")] == [0, 15], "no step is lost"
    assert [event["source"] for event in gang.of("restore")] == ["store", "memory"]
    assert gang.digest == undisturbed
    assert all(gang.processes[place].pid == pid for place, pid in survivors.items())


def test_a_noticed_node_loses_no_step_and_the_others_stay(make: MakeSharded, undisturbed: str) -> None:
    gang = make(gate_step=15, peer_steps=100, every=1000)
    gang.start(*range(NODES))
    gang.until(lambda: gang.copied(1) and gang.at_gate())
    gang.processes[1].send_signal(signal.SIGTERM)
    assert gang.processes[1].wait(WAIT_S) == EXIT_PREEMPTED
    assert all(gang.processes[place].poll() is None for place in (0, 2))
    gang.open_gate()
    gang.start(1)
    assert gang.all_ended() == [0] * NODES, gang.logs()
    assert [event["step"] for event in gang.of("restore")] == [0, 15]
    assert "restored step 15 of run sharded from the memory of nodes" in (gang.folder / "log-0").read_text()
    assert gang.digest == undisturbed


@pytest.mark.parametrize(
    ("damaged", "restored", "logged"),
    [
        (0, 10, "the memory of nodes cannot be used, reading the store"),  # its neighbour is the node that is lost
        (2, 15, "restored step 15 of run sharded from the memory of nodes"),
    ],
)
def test_a_damaged_memory_is_not_loaded_and_the_gang_goes_on_from_what_is_sound(
    make: MakeSharded, undisturbed: str, damaged: int, restored: int, logged: str
) -> None:
    gang = make(gate_step=15)
    gang.start(*range(NODES))
    gang.until(lambda: gang.copied(15))
    gang.lose(1)
    damage(staging_memories(gang.processes[damaged].pid))
    gang.open_gate()
    gang.start(1)
    assert gang.all_ended() == [0] * NODES, gang.logs()
    assert [event["step"] for event in gang.of("restore")] == [0, restored], gang.logs()
    assert logged in (gang.folder / "log-0").read_text()
    assert gang.digest == undisturbed


def test_a_damaged_memory_before_the_first_commit_ends_the_gang_which_then_begins_clean(
    make: MakeSharded, undisturbed: str
) -> None:
    """What was filled in part is not where the run began."""
    gang = make(gate_step=5)
    gang.start(*range(NODES))
    gang.until(lambda: gang.copied(5))
    gang.lose(1)
    damage(staging_memories(gang.processes[0].pid))
    gang.open_gate()
    gang.start(1)
    assert set(gang.all_ended()) == {EXIT_RETRY}, gang.logs()
    gang.start(*range(NODES))
    assert gang.all_ended() == [0] * NODES, gang.logs()
    assert [event["step"] for event in gang.of("restore")] == [0, 0], gang.logs()
    assert gang.digest == undisturbed


def test_without_copies_a_lost_node_is_replaced_and_the_bucket_is_read(make: MakeSharded, undisturbed: str) -> None:
    gang = make(gate_step=15, copies=0)
    gang.start(*range(NODES))
    gang.until(gang.committed)
    assert not any(gang.held().values())
    gang.lose(2)
    gang.open_gate()
    gang.start(2)
    assert gang.all_ended() == [0] * NODES, gang.logs()
    assert [event["step"] for event in gang.of("restore")] == [0, 10]
    assert gang.digest == undisturbed
