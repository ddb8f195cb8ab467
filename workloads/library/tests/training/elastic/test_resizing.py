"""A sharded gang with a least number of nodes: it goes on without lost nodes, and takes others in.

Each run ends with the bits of an undisturbed one on any other number of nodes.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT, EXIT_KILLED, EXIT_PREEMPTED, EXIT_RETRY
from tests.support import commits
from workloads.library.tests.fork_server import Forked, ForkServer
from workloads.library.tests.processes import children
from workloads.library.tests.training.elastic.gangs import read_lines
from workloads.library.tests.training.elastic.sharded_gangs import ShardedGang

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

CHILD = "workloads.library.tests.training.elastic.resizing_child"
PATIENT_NODE = "workloads.library.tests.training.elastic.patient_node"
GATE = 3
"""Step by which both slots for copies of a rank have been written, and one of them twice."""
STEPS = 5
LONG = 16
Make = Callable[..., ShardedGang]


SETTINGS: dict[str, Any] = {
    "child": CHILD,
    "module": PATIENT_NODE,
    "gate_step": GATE,
    "steps": STEPS,
    "every": 1000,
    "min_nodes": 1,
    # Longer than a Spot node's, as a busy machine is slower.
    "window_s": 90.0,
}


@pytest.fixture(scope="module")
def reference(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The digest of each step of a run on two nodes that nothing happens to."""
    options = SETTINGS | {
        "gate_step": -1,
        "steps": LONG,
        "peer_steps": 1000,
    }
    folder = tmp_path_factory.mktemp("undisturbed")
    gang = ShardedGang(folder, server, nodes=2, **options)
    with closing(gang):
        gang.start(0, 1)
        assert gang.all_ended() == [0, 0], gang.logs()
        return {line["step"]: line["digest"] for line in lines(gang)}


@pytest.fixture
def make(make: Make, reference: dict[int, str]) -> Iterator[Make]:
    """Makes gangs, and checks the bits of each step of those that complete."""
    gangs: list[ShardedGang] = []

    def make_gang(**settings: Any) -> ShardedGang:
        options = SETTINGS | settings
        gang = make(kind=ShardedGang, **options)
        gangs.append(gang)
        return gang

    yield make_gang
    for gang in gangs:
        if not gang.of("exit"):
            continue
        for line in lines(gang):
            digest = reference[line["step"]]
            assert line["digest"] == digest, (line, gang.logs())


def lines(gang: ShardedGang) -> list[dict[str, Any]]:
    """Returns what each start and each step noted, in order."""
    return read_lines(Path(gang.settings["bits"]))


def list_steps(gang: ShardedGang) -> list[int]:
    return [line["step"] for line in lines(gang)]


def starts(gang: ShardedGang, size: int, *, since: int = 0) -> list[int]:
    """Returns the first step of each start with this number of ranks, from line `since` on."""
    steps: list[int] = []
    for line in lines(gang)[since:]:
        if line.get("start") and line["size"] == size:
            steps.append(line["step"])
    return steps


def has_done(gang: ShardedGang, step: int, *, size: int) -> bool:
    """Tells whether this number of ranks is at work and has done that step."""
    if not lines(gang):
        return False
    newest = lines(gang)[-1]
    return newest["size"] == size and newest["step"] >= step


def list_stored_steps(gang: ShardedGang) -> list[int]:
    steps: list[int] = []
    for commit in commits(gang.checkpoints):
        folder = commit.parent.name
        steps.append(int(folder.removeprefix("step-")))
    return steps


def start_to_the_gate(make: Make, **settings: Any) -> ShardedGang:
    """Starts a gang and waits until all its ranks wait at the gate, after step GATE."""
    gang = make(**settings)
    gang.start(*range(gang.nodes))
    gang.until(lambda: gang.at_gate() and GATE in list_steps(gang))
    return gang


def lose(gang: ShardedGang, *places: int) -> int:
    """Loses nodes at one moment; returns the number of lines noted before."""
    line_count = len(lines(gang))
    gang.lose(*places)
    return line_count


def wait_for_start(gang: ShardedGang, size: int, *, since: int) -> int:
    """Waits for a start with this number of ranks after line `since`, and returns its first step.

    A starved gang may have met in any size before.
    """
    gang.until(lambda: starts(gang, size, since=since))
    return starts(gang, size, since=since)[0]


def give_notice(gang: ShardedGang, *places: int) -> None:
    for place in places:
        gang.processes[place].send_signal(signal.SIGTERM)


def check_codes(gang: ShardedGang, code: int) -> None:
    """Checks that all nodes end with a code."""
    codes = set(gang.all_ended())
    assert codes == {code}, gang.logs()


def ends_alike(gang: ShardedGang, *, lost_places: tuple[int, ...] = ()) -> None:
    """Opens the gate. All nodes but those of `lost_places` complete, without the bucket."""
    gang.open_gate()
    for place in lost_places:
        gang.processes.pop(place, None)
    check_codes(gang, 0)
    last_step = gang.settings["steps"]
    assert set(list_steps(gang)) == set(range(last_step + 1)), gang.logs()
    _, *later_restores = gang.of("restore")
    for restore in later_restores:
        assert restore["source"] == "memory", gang.logs()
    assert not gang.shards_in_bucket() or gang.committed()


@pytest.mark.parametrize("has_folder", [False, True], ids=["memory", "disk"])
def test_the_others_go_on_without_a_lost_node_and_take_its_replacement_in(
    make: Make, tmp_path: Path, has_folder: bool
) -> None:
    folder = str(tmp_path) if has_folder else ""
    gang = start_to_the_gate(make, nodes=4, copies_folder=folder)
    gang.until(lambda: gang.has_copied(GATE))
    survivors = {}
    for place in (0, 1, 3):
        survivors[place] = gang.processes[place].pid
    assert starts(gang, 4)[0] == 0
    since = lose(gang, 2)
    assert wait_for_start(gang, 3, since=since) == GATE, gang.logs()
    gang.start(2)
    assert wait_for_start(gang, 4, since=since) == GATE, gang.logs()
    ends_alike(gang)
    for place, pid in survivors.items():
        assert gang.processes[place].pid == pid


@pytest.mark.parametrize("has_folder", [False, True], ids=["memory", "disk"])
def test_a_loss_costs_the_steps_since_the_last_copy(
    make: Make, tmp_path: Path, has_folder: bool
) -> None:
    folder = str(tmp_path) if has_folder else ""
    gang = make(
        nodes=4,
        # It does not end before the loss.
        gate_step=LONG - 1,
        steps=LONG,
        pace_s=0.05,
        every=7,
        copies_folder=folder,
    )
    gang.start(0, 1, 2, 3)
    gang.until(lambda: max(list_steps(gang), default=0) >= 10)
    since = lose(gang, 2)
    first_step = wait_for_start(gang, 3, since=since)
    ends_alike(gang, lost_places=(2,))
    last_step = max(line["step"] for line in lines(gang) if line["size"] == 4)
    # A step is copied before the next one ends.
    lost_steps = last_step - first_step
    assert lost_steps <= 2, gang.logs()


def test_a_node_whose_rank_is_killed_ends_and_the_others_go_on(make: Make) -> None:
    """The ranks of all nodes end with it, and their launchers see no node that is lost."""
    gang = make(
        nodes=3,
        # It does not end before the loss.
        gate_step=LONG - 1,
        steps=LONG,
        pace_s=0.05,
        every=7,
    )
    gang.start(0, 1, 2)
    # A starved gang may have met in another size before, and its ranks start again.
    gang.until(lambda: has_done(gang, 5, size=3))
    since = len(lines(gang))
    (fork_server,) = children(gang.processes[1].pid)
    (rank,) = children(fork_server)
    os.kill(rank, signal.SIGKILL)
    assert gang.ended(1) == EXIT_KILLED, gang.logs()
    wait_for_start(gang, 2, since=since)
    ends_alike(gang, lost_places=(1,))


def test_a_noticed_node_hands_its_shard_over_and_no_step_is_lost(make: Make) -> None:
    gang = start_to_the_gate(make, nodes=4, peer_steps=100)
    since = len(lines(gang))
    give_notice(gang, 2)
    assert gang.ended(2) == EXIT_PREEMPTED, gang.logs()
    assert "ERROR" not in gang.read_log(2)
    assert wait_for_start(gang, 3, since=since) == GATE, gang.logs()
    ends_alike(gang, lost_places=(2,))


@pytest.mark.parametrize("noticed", [(0, 1), (1, 2, 3)], ids=["neighbors", "all but one"])
def test_noticed_neighbors_serve_their_memory_until_the_others_have_it(
    make: Make, noticed: tuple[int, ...]
) -> None:
    gang = start_to_the_gate(make, nodes=4, peer_steps=100)
    since = len(lines(gang))
    give_notice(gang, *noticed)
    for place in noticed:
        assert gang.ended(place) == EXIT_PREEMPTED, gang.logs()
    remaining = gang.nodes - len(noticed)
    assert wait_for_start(gang, remaining, since=since) == GATE, gang.logs()
    ends_alike(gang, lost_places=noticed)


def test_two_nodes_may_be_lost_at_once_unless_they_are_neighbors(make: Make) -> None:
    gang = start_to_the_gate(make, nodes=4)
    gang.until(lambda: gang.has_copied(GATE))
    since = lose(gang, 1, 3)
    assert wait_for_start(gang, 2, since=since) == GATE, gang.logs()
    ends_alike(gang, lost_places=(1, 3))


def start_with_a_kill(make: Make, point: str) -> ShardedGang:
    """Starts four nodes, of which the last one is killed when it divides the state with others.

    On a busy machine a node may come so late that the others begin without it. They divide the
    state when it comes, and the last one is killed before the gate: then the next gang is tried.
    """
    attempt = 0
    while True:
        gang = make(name=f"gang-{attempt}", nodes=4)
        gang.start(0, 1, 2)
        gang.start(3, kill_at=point)
        if reaches_the_gate(gang, gang.processes[3]):
            return gang
        gang.close()
        attempt += 1


def reaches_the_gate(gang: ShardedGang, member: Forked) -> bool:
    """Waits until the gang is at the gate or the member has ended; returns whether it lives."""

    def is_decided() -> bool:
        return member.poll() is not None or (gang.at_gate() and gang.has_copied(GATE))

    gang.until(is_decided)
    return member.poll() is None


@pytest.mark.parametrize("point", ["peer.restore", "restore.verified", "gang.report"])
def test_a_node_may_be_lost_while_the_others_divide_the_state(make: Make, point: str) -> None:
    gang = start_with_a_kill(make, point)
    since = lose(gang, 1)
    assert gang.ended(3) not in (0, EXIT_PREEMPTED), gang.logs()
    wait_for_start(gang, 2, since=since)
    ends_alike(gang, lost_places=(1, 3))


def test_a_node_that_dies_while_it_joins_is_left_out(make: Make) -> None:
    gang = start_to_the_gate(make, nodes=3)
    gang.until(lambda: gang.has_copied(GATE))
    since = lose(gang, 1)
    wait_for_start(gang, 2, since=since)
    since = len(lines(gang))
    gang.start(1, kill_at="peer.restore")
    assert gang.ended(1) != 0, gang.logs()
    wait_for_start(gang, 2, since=since)
    ends_alike(gang, lost_places=(1,))


def test_all_at_once_continue_from_the_bucket(make: Make) -> None:
    gang = start_to_the_gate(make, nodes=3, every=2)
    gang.until(gang.committed)
    gang.lose(0, 1, 2)
    gang.start(0, 1, 2)
    gang.open_gate()
    assert gang.all_ended() == [0, 0, 0], gang.logs()


@pytest.mark.parametrize(
    ("nodes", "min_nodes", "lost_places"), [(4, 3, (1, 3)), (3, 0, (1,))], ids=["least", "fixed"]
)
def test_a_gang_that_waited_too_long_stores_what_it_holds_and_ends(
    make: Make,
    nodes: int,
    min_nodes: int,
    lost_places: tuple[int, ...],
) -> None:
    gang = start_to_the_gate(make, nodes=nodes, min_nodes=min_nodes, wait_s=2.0)
    gang.until(lambda: gang.has_copied(GATE))
    gang.lose(*lost_places)
    for place in range(nodes):
        if place not in lost_places:
            assert gang.ended(place) == EXIT_RETRY, gang.logs()
    assert list_stored_steps(gang) == [GATE], gang.logs()
    restores_before = len(gang.of("restore"))
    gang.open_gate()
    gang.start(*range(nodes))
    check_codes(gang, 0)
    # A node that comes late restores once more, from the others.
    first_restore = gang.of("restore")[restores_before]
    assert first_restore["step"] == GATE
    assert first_restore["source"] == "store"


def test_nodes_that_all_have_a_notice_store_the_last_step(make: Make) -> None:
    gang = start_to_the_gate(make, nodes=3, peer_steps=100)
    give_notice(gang, 0, 1, 2)
    check_codes(gang, EXIT_PREEMPTED)
    assert list_stored_steps(gang) == [GATE], gang.logs()


def name_settings(value: object) -> str:
    return "-".join(value) if isinstance(value, dict) else ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"per_rank": True}, "entry own cannot be divided over another number of nodes"),
        ({"batch": 50}, "50 samples in 6 shards"),
        ({"shards": 1, "batch": 1}, "1 shards for up to 2 ranks"),
        ({"mesh": "replicas"}, "cannot lose one node"),
        ({"moments": "plain"}, "is a plain tensor of"),
        ({"norm": "sync"}, "layer 4 of the model, with exact=True"),
        (
            {"norm": "spectral"},
            "buffer 0.parametrizations.weight.0._u of the model",
        ),
    ],
    ids=name_settings,
)
def test_what_cannot_be_divided_again_is_refused(
    make: Make, settings: dict[str, Any], message: str
) -> None:
    gang = make(nodes=2, **settings)
    gang.start(0, 1)
    check_codes(gang, EXIT_BAD_INPUT)
    assert message in gang.logs()


@pytest.mark.parametrize("min_nodes", [1, 0], ids=["range", "fixed"])
def test_a_state_that_grows_beyond_the_memory_in_its_first_step_is_refused(
    make: Make, min_nodes: int
) -> None:
    """An optimizer creates its tensors there, so the size at the start says too little."""
    gang = make(nodes=2, min_nodes=min_nodes, gate_step=-1)
    gang.start(0, 1, module="workloads.library.tests.training.elastic.small_node")
    check_codes(gang, EXIT_BAD_INPUT)
    assert "the fewest nodes of the gang cannot hold its state" in gang.logs()
    assert list_steps(gang) == [0, 1], gang.logs()


def test_a_node_with_other_libraries_is_rejected(make: Make) -> None:
    gang = start_to_the_gate(make, nodes=2)
    since = lose(gang, 1)
    gang.start(1, module="workloads.library.tests.training.elastic.other_version")
    assert gang.ended(1) == EXIT_BAD_INPUT, gang.logs()
    assert "different libraries" in gang.read_log(1)
    gang.start(1)
    # A node that comes after the last step would wait for a gang of its own.
    wait_for_start(gang, 2, since=since)
    ends_alike(gang)
