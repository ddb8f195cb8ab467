"""Two nodes of two ranks with a state that is laid out over a mesh: a lost node is replaced, and all go on from memory."""

import pytest

from holdfast.contract.exit_codes import EXIT_BAD_INPUT
from workloads.library.tests.training.elastic.conftest import MakeSharded
from workloads.library.tests.training.elastic.sharded_gangs import WAIT_S

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

NODES, STEPS, GATE = 2, 8, 5


@pytest.mark.parametrize(
    ("layout", "lost"),
    [
        ("fsdp", 1),
        ("hsdp", 0),  # the replica that writes: ranks of the other one have no tensor to write
        ("hsdp-inside", 1),
        ("tp", 0),
    ],
)
def test_a_lost_node_is_replaced_and_no_shard_is_read_from_the_bucket(
    make_sharded: MakeSharded, layout: str, lost: int
) -> None:
    settings = {"nodes": NODES, "processes": 2, "layout": layout, "steps": STEPS, "every": 3}
    struck = make_sharded("struck", gate_step=GATE, **settings)
    undisturbed = make_sharded("undisturbed", copies=0, **settings)
    struck.start(*range(NODES))
    struck.until(lambda: struck.copied(GATE) and struck.committed())
    survivor = struck.processes[1 - lost].pid
    struck.lose(lost)
    for shard in struck.shards_in_bucket():
        shard.unlink()
    struck.open_gate()
    struck.start(lost)
    assert struck.all_ended() == [0] * NODES, struck.logs()
    restores = [(event["step"], event["source"]) for event in struck.of("restore")]
    assert restores == [(0, "store"), (GATE, "memory")], struck.logs()
    assert struck.processes[1 - lost].pid == survivor
    undisturbed.start(*range(NODES))
    assert undisturbed.all_ended() == [0] * NODES, undisturbed.logs()
    assert struck.digest == undisturbed.digest


def test_a_node_of_another_size_is_refused_and_the_others_wait_on(make_sharded: MakeSharded) -> None:
    two = make_sharded(nodes=2, gate_step=GATE, steps=STEPS, every=1000)
    two.start(0, 1)
    two.until(lambda: two.copied(GATE))
    two.lose(1)
    two.processes_of_node = 2
    two.start(1)
    assert two.processes[1].wait(WAIT_S) == EXIT_BAD_INPUT, two.logs()
    assert "2 nodes of 2 processes here, 2 nodes of 1 processes at another node" in two.logs()
    two.processes_of_node = 1
    two.open_gate()
    two.start(1)
    assert two.all_ended() == [0, 0], two.logs()
    assert [event["step"] for event in two.of("restore")] == [0, GATE]


def test_copies_are_in_another_zone_so_that_the_nodes_of_one_may_be_lost_together(make_sharded: MakeSharded) -> None:
    zones = ["a/rack-1", "b/rack-1", "b/rack-2", "a/rack-2"]
    four = make_sharded(nodes=4, domains=zones, gate_step=GATE, steps=STEPS, every=1000)
    four.start(*range(4))
    four.until(lambda: four.copied(GATE))
    for place in (1, 2):
        four.lose(place)
    four.open_gate()
    four.start(1, 2)
    assert four.all_ended() == [0] * 4, four.logs()
    restores = [(event["step"], event["source"]) for event in four.of("restore")]
    assert restores[-1] == (GATE, "memory"), four.logs()
