"""State that is shared by the ranks of a node: whatever is lost or comes, the exact run ends in the
same bits.
"""

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.vocabulary.environment import (
    ENV_COMPLETION_INDEX,
    ENV_GANG_NODES,
    ENV_GANG_PORT,
    ENV_LOCAL_RANK,
    ENV_LOCAL_WORLD_SIZE,
)
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_PREEMPTED, EXIT_RETRY
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.elastic.gangs import HSDP_CHILD, Gang, free_run
from workloads.library.tests.training.elastic.kills import Played, Strike

pytestmark = pytest.mark.process

RANKS = 2


class Nodes(Gang):
    """Nodes of RANKS processes each, which share one state."""

    def __init__(self, folder: Path, *, server: ForkServer, nodes: int, **settings: Any) -> None:
        # two shards for each of two nodes, and four for one
        settings = {"shards": 4, "steps": 30} | settings
        super().__init__(
            folder,
            nodes=nodes,
            server=server,
            child=HSDP_CHILD,
            **settings,
        )
        first = free_run(2 * nodes * RANKS)
        self._gang = {
            ENV_GANG_NODES: str(nodes),
            ENV_GANG_PORT: str(first),
        }
        self.settings["nodes"] = [["127.0.0.1", first + 2 * RANKS * node] for node in range(nodes)]

    def start_node(self, node: int, kill_at: str = "", *, rank: int = -1) -> None:
        """Starts the processes of a node; `kill_at` is for its rank `rank`, or for all if -1."""
        for place in self.list_places(node):
            self.start(place, kill_at=kill_at if rank in (-1, place % RANKS) else "")

    def of_place(self, place: int) -> dict[str, str]:
        rank = {
            ENV_LOCAL_RANK: str(place % RANKS),
            ENV_LOCAL_WORLD_SIZE: str(RANKS),
        }
        return self._gang | rank | {ENV_COMPLETION_INDEX: str(place // RANKS)}

    def list_places(self, node: int) -> range:
        return range(node * RANKS, (node + 1) * RANKS)


Make = Callable[..., Nodes]


@pytest.fixture
def make(make: Make) -> Make:
    return partial(make, kind=Nodes, nodes=2)


@pytest.fixture(scope="module")
def reference_digest(tmp_path_factory: pytest.TempPathFactory, server: ForkServer) -> str:
    """Digest of a run on one node that nothing happens to."""
    return Nodes(tmp_path_factory.mktemp("undisturbed"), server=server, nodes=1).compute_digest()


def test_lost_rank_loses_its_node_and_the_replacement_copies_each_shard(
    make: Make, reference_digest: str
) -> None:
    """The killed rank's peer completes its sum with the other node, whose rank 0 would then apply
    the step while its rank 1 would not.
    """
    gang = make(gate_step=25)
    gang.start_node(1)
    gang.start_node(0, "gang.reduce:12", rank=1)
    # one that is back before the other goes on is taken in at once
    gang.until(lambda: 1 in gang.sizes())
    assert [gang.ended(place) for place in gang.list_places(0)] == [EXIT_RETRY, -signal.SIGKILL]
    gang.start_node(0)
    gang.until(lambda: gang.has_come(0, lead=1))
    gang.open_gate()
    gang.ends_with(reference_digest, 2, 1, 2)
    assert len(gang.of("restore")) == 1, "neither survivors nor the newcomer need a checkpoint"


def test_one_node_resumes_from_two(make: Make, reference_digest: str) -> None:
    gang = make(every=1000, gate_step=15)
    for node in (0, 1):
        gang.start_node(node)
    gang.until(gang.sizes)
    for place in gang.processes:
        gang.signal(place, signal.SIGTERM)
    gang.open_gate()
    assert {*gang.all_ended()} == {EXIT_PREEMPTED}, gang.logs()
    (left_at,) = {gang.of(event)[-1]["step"] for event in ("commit", "stop")}
    single = make(nodes=1, every=1000)
    single.start_node(0)
    single.ends_with(reference_digest)
    assert single.of("restore")[-1]["step"] == left_at


def test_plain_sums_differ_in_their_last_bits_only(make: Make) -> None:
    """Checks that sums differ slightly: over nodes floats are added in another order; inside a node
    the order is always the same.
    """
    weights: list[list[float]] = []
    for nodes in (1, 2):
        gang = make(f"of-{nodes}", nodes=nodes, exact=False, steps=8)
        for node in range(nodes):
            gang.start_node(node)
        assert {*gang.all_ended()} == {EXIT_COMPLETE}, gang.logs()
        assert len(gang.digests()) == 1, "all nodes hold the same"
        weights.append(gang.of("exit")[-1]["weights"])
    assert weights[0] == pytest.approx(weights[1], rel=1e-3, abs=1e-5)


# In the order in which a node reaches these points. Only rank 0 of a node asks and decides, so its
# other ranks do not reach the points at which it does so.
KILLS = [
    Strike(point="gang.reduced", place=0, count=4),
    Strike(point="gang.join", place=0),
    Strike(point="gang.connect", place=0, rank=1),
    Strike(point="gang.synchronize", place=0),
    Strike(point="stage.begin", place=0, rank=1),
    Strike(point="stage.end", place=0),
    Strike(point="gang.propose", place=1),
    Strike(
        point="gang.reduce",
        place=1,
        rank=1,
        count=3,
    ),
    Strike(point="gang.report", place=1),
    Strike(point="gang.proposed", place=1),
]


@pytest.mark.timeout(1000)
def test_nodes_that_lose_a_rank_at_any_point_end_in_the_same_bits(
    make: Make, reference_digest: str
) -> None:
    gang = make(
        pace_s=0.5,
        every=5,
        gather_s=2.0,
        hold_s=30.0,
        silent_s=8.0,
        connect_s=4.0,
    )
    played = Played(gang, KILLS)
    assert played.wrong == [], gang.logs()
    assert gang.digests() == {reference_digest}, gang.logs()
    assert len(played.struck) >= 2
