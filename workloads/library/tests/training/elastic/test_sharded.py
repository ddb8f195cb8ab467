"""A gang of a sharded state: lost nodes are waited for, and the ranks go on from the memory of
those that are left.

What is damaged, and losses at each point: test_sharded_kills.py.
"""

import signal
from collections.abc import Callable
from functools import partial

import pytest

from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT, EXIT_PREEMPTED
from workloads.library.tests.training.elastic.sharded_gangs import ShardedGang

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

GATE = 5
STEPS = 8
EVERY = 3
Make = Callable[..., ShardedGang]


@pytest.fixture
def make(make: Make) -> Make:
    return partial(
        make,
        kind=ShardedGang,
        gate_step=GATE,
        steps=STEPS,
        every=1000,
        bits_at=[GATE],
    )


def at_the_gate(gang: ShardedGang, *, copied: int = GATE) -> ShardedGang:
    """Starts the gang, and waits until its bits at the gate are noted and each shard of the step
    `copied` is on a neighbor too.
    """
    gang.start(*range(gang.nodes))
    gang.until(lambda: gang.has_copied(copied) and gang.at_gate() and gang.has_noted(GATE))
    return gang


def ends_after_a_restore(
    gang: ShardedGang, *replaced: int, step: int = GATE, source: str = "memory"
) -> None:
    """Starts the replacements, and checks that all go on at `step` with the bits that they had
    there, however often they meet.
    """
    before = len(gang.of("restore"))
    gang.open_gate()
    gang.start(*replaced)
    assert gang.all_ended() == [0] * gang.nodes, gang.logs()
    restores = []
    for event in gang.of("restore"):
        restores.append((event["step"], event["source"]))
    first, *_ = resumed = restores[before:]
    assert restores[0] == (0, "store"), gang.logs()
    assert first == (step, source), gang.logs()
    assert all(done >= step and came_from == source for done, came_from in resumed), gang.logs()
    assert "a bug in holdfast" not in gang.logs(), "a lost node is expected"
    digests = []
    for done, digest in gang.bits():
        if done == step:
            digests.append(digest)
    assert len(digests) >= 2, gang.bits()
    assert len({*gang.bits()}) == len({done for done, _ in gang.bits()}), gang.bits()


@pytest.mark.parametrize(
    ("layout", "nodes", "processes", "lost_place"),
    [
        ("fsdp", 3, 1, 1),
        ("fsdp", 2, 2, 1),
        # the replica that writes: ranks of the other one have no tensor to write
        ("hsdp", 2, 2, 0),
        ("hsdp-inside", 2, 2, 1),
        ("tp", 2, 2, 0),
    ],
)
def test_a_lost_node_is_replaced_and_no_shard_is_read_from_the_bucket(
    make: Make,
    layout: str,
    nodes: int,
    processes: int,
    lost_place: int,
) -> None:
    gang = at_the_gate(
        make(
            nodes=nodes,
            processes=processes,
            layout=layout,
            every=EVERY,
        )
    )
    gang.until(gang.committed)
    survivors = {}
    for place, process in gang.processes.items():
        if place != lost_place:
            survivors[place] = process.pid
    gang.lose(lost_place)
    shards = gang.shards_in_bucket()
    assert shards
    for shard in shards:  # a step is committed, and not one byte can come from there
        shard.unlink()
    ends_after_a_restore(gang, lost_place)
    assert all(gang.processes[place].pid == pid for place, pid in survivors.items())


def test_a_noticed_node_loses_no_step_and_the_others_stay(make: Make) -> None:
    # The window is longer than a Spot node's, as a busy machine is slower.
    gang = at_the_gate(make(nodes=3, peer_steps=100, window_s=90.0), copied=1)
    gang.processes[1].send_signal(signal.SIGTERM)
    assert gang.ended(1) == EXIT_PREEMPTED
    for place in (0, 2):
        assert gang.processes[place].poll() is None
    ends_after_a_restore(gang, 1)
    assert "restored step 5 of run sharded from the memory of nodes" in gang.read_log(0)


def test_without_copies_a_lost_node_is_replaced_and_the_bucket_is_read(make: Make) -> None:
    gang = make(
        nodes=2,
        copies=0,
        every=EVERY,
        bits_at=[EVERY],
    )
    gang.start(0, 1)
    gang.until(lambda: gang.committed() and gang.has_noted(EVERY))
    assert not any(gang.held().values())
    gang.lose(1)
    ends_after_a_restore(gang, 1, step=EVERY, source="store")


def test_node_with_another_size_is_rejected_and_the_others_wait(make: Make) -> None:
    two = at_the_gate(make(nodes=2))
    two.lose(1)
    two.processes_of_node = 2
    two.start(1)
    assert two.ended(1) == EXIT_BAD_INPUT, two.logs()
    assert "2 nodes of 2 processes here, 2 nodes of 1 processes at another node" in two.logs()
    two.processes_of_node = 1
    ends_after_a_restore(two, 1)


def test_copies_are_in_another_zone_so_that_one_zone_may_be_lost(make: Make) -> None:
    four = at_the_gate(make(nodes=4, domains=["a/rack-1", "b/rack-1", "b/rack-2", "a/rack-2"]))
    four.lose(1, 2)
    ends_after_a_restore(four, 1, 2)
