"""A gang of a sharded state: lost nodes are waited for, and the ranks go on from the memory of those that are left.

What is damaged, and losses at each point: test_sharded_kills.py.
"""

import signal
from collections.abc import Callable
from functools import partial

import pytest

from holdfast.contract.exit_codes import EXIT_BAD_INPUT, EXIT_PREEMPTED
from workloads.library.tests.training.elastic.sharded_gangs import ShardedGang

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

GATE, STEPS, EVERY = 5, 8, 3
Make = Callable[..., ShardedGang]


@pytest.fixture
def make(make: Make) -> Make:
    return partial(make, kind=ShardedGang)


def ends_after_a_restore(gang: ShardedGang, *replaced: int, step: int, source: str = "memory") -> None:
    """The replacements start, and all go on at `step` with the bits that they had there."""
    gang.open_gate()
    gang.start(*replaced)
    assert gang.all_ended() == [0] * gang.nodes, gang.logs()
    restores = [(event["step"], event["source"]) for event in gang.of("restore")]
    assert restores == [(0, "store"), (step, source)], gang.logs()
    _, (at, before), again = gang.bits()
    assert (at, before) == again and at == step, gang.bits()


def without_the_bucket(gang: ShardedGang) -> None:
    """A step is committed, and not one byte of a shard can come from there."""
    shards = gang.shards_in_bucket()
    assert shards
    for shard in shards:
        shard.unlink()


@pytest.mark.parametrize(
    ("layout", "nodes", "processes", "lost"),
    [
        ("fsdp", 3, 1, 1),
        ("fsdp", 2, 2, 1),
        ("hsdp", 2, 2, 0),  # the replica that writes: ranks of the other one have no tensor to write
        ("hsdp-inside", 2, 2, 1),
        ("tp", 2, 2, 0),
    ],
)
def test_a_lost_node_is_replaced_and_no_shard_is_read_from_the_bucket(
    make: Make, layout: str, nodes: int, processes: int, lost: int
) -> None:
    gang = make(
        nodes=nodes, processes=processes, layout=layout, steps=STEPS, every=EVERY, gate_step=GATE, bits_at=[GATE]
    )
    gang.start(*range(nodes))
    gang.until(lambda: gang.copied(GATE) and gang.noted(GATE) and gang.committed())
    survivors = {place: process.pid for place, process in gang.processes.items() if place != lost}
    gang.lose(lost)
    without_the_bucket(gang)
    ends_after_a_restore(gang, lost, step=GATE)
    assert all(gang.processes[place].pid == pid for place, pid in survivors.items())


def test_a_noticed_node_loses_no_step_and_the_others_stay(make: Make) -> None:
    gang = make(nodes=3, gate_step=GATE, peer_steps=100, steps=STEPS, every=1000, bits_at=[GATE])
    gang.start(*range(3))
    gang.until(lambda: gang.copied(1) and gang.at_gate() and gang.noted(GATE))
    gang.processes[1].send_signal(signal.SIGTERM)
    assert gang.ended(1) == EXIT_PREEMPTED
    assert all(gang.processes[place].poll() is None for place in (0, 2))
    ends_after_a_restore(gang, 1, step=GATE)
    assert "restored step 5 of run sharded from the memory of nodes" in gang.log_of(0)


def test_without_copies_a_lost_node_is_replaced_and_the_bucket_is_read(make: Make) -> None:
    gang = make(nodes=2, gate_step=GATE, copies=0, steps=STEPS, every=EVERY, bits_at=[EVERY])
    gang.start(0, 1)
    gang.until(lambda: gang.committed() and gang.noted(EVERY))
    assert not any(gang.held().values())
    gang.lose(1)
    ends_after_a_restore(gang, 1, step=EVERY, source="store")


def test_a_node_of_another_size_is_refused_and_the_others_wait_on(make: Make) -> None:
    two = make(nodes=2, gate_step=GATE, steps=STEPS, every=1000, bits_at=[GATE])
    two.start(0, 1)
    two.until(lambda: two.copied(GATE) and two.noted(GATE))
    two.lose(1)
    two.processes_of_node = 2
    two.start(1)
    assert two.ended(1) == EXIT_BAD_INPUT, two.logs()
    assert "2 nodes of 2 processes here, 2 nodes of 1 processes at another node" in two.logs()
    two.processes_of_node = 1
    ends_after_a_restore(two, 1, step=GATE)


def test_copies_are_in_another_zone_so_that_the_nodes_of_one_may_be_lost_together(make: Make) -> None:
    zones = ["a/rack-1", "b/rack-1", "b/rack-2", "a/rack-2"]
    four = make(nodes=4, domains=zones, gate_step=GATE, steps=STEPS, every=1000, bits_at=[GATE])
    four.start(*range(4))
    four.until(lambda: four.copied(GATE) and four.noted(GATE))
    for place in (1, 2):
        four.lose(place)
    ends_after_a_restore(four, 1, 2, step=GATE)
