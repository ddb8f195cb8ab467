"""A node of a sharded gang that computed wrong is found in the steps since the last copy."""

import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.vocabulary.environment import ENV_EVENTS
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_PREEMPTED
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.elastic.gangs import read_lines
from workloads.library.tests.training.elastic.sharded_gangs import ShardedGang
from workloads.library.tests.training.elastic.test_resizing import SETTINGS

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

KILLED = -signal.SIGKILL
COPIED = 11  # the first copy is of step 1
STEP = 12
GATE = 14
STEPS = 20
HIGH_BIT = 25
FAULTY = 1
FIRST_EPOCH = 1
Make = Callable[..., ShardedGang]
OPTIONS: dict[str, Any] = SETTINGS | {"steps": STEPS, "gate_step": GATE, "peer_steps": COPIED - 1}


@pytest.fixture(scope="module")
def reference(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of a run on one sound node."""
    folder = tmp_path_factory.mktemp("undisturbed")
    gang = ShardedGang(folder, server, nodes=1, **OPTIONS | {"gate_step": -1})
    with closing(gang):
        gang.start(0)
        assert gang.all_ended() == [EXIT_COMPLETE], gang.logs()
        return gang.digest


def play_loss(make: Make, tmp_path: Path, *, lost_node: int, last_epoch: int) -> ShardedGang:
    """Loses a node after steps that are not in a copy; in one of them a node computed wrong."""
    gang = make(
        kind=ShardedGang,
        nodes=4,
        env={ENV_EVENTS: str(tmp_path / "gang" / "events.jsonl")},
        faults=[{"node": FAULTY, "step": STEP, "bit": HIGH_BIT, "last_epoch": last_epoch}],
        **OPTIONS,
    )
    gang.start(0, 1, 2, 3)
    gang.until(lambda: gang.at_gate() and gang.has_copied(COPIED))
    gang.lose(lost_node)
    gang.open_gate()
    gang.until(lambda: gang.of("exit"))
    return gang


@pytest.mark.parametrize("last_epoch", [FIRST_EPOCH, 99], ids=["transient", "lasting"])
def test_a_node_whose_applied_gradients_were_wrong_is_named_and_leaves(
    make: Make, tmp_path: Path, reference: str, last_epoch: int
) -> None:
    gang = play_loss(make, tmp_path, lost_node=3, last_epoch=last_epoch)
    expected = [EXIT_COMPLETE, EXIT_PREEMPTED, EXIT_COMPLETE, KILLED]
    assert gang.all_ended() == expected, gang.logs()
    named = [(line["step"], line["rank"]) for line in gang.of("miscomputed")]
    assert named == [(STEP, FAULTY)], gang.logs()
    assert gang.digest == reference, gang.logs()


def test_sound_nodes_are_not_named_where_the_faulty_one_is_lost(
    make: Make, tmp_path: Path, reference: str
) -> None:
    gang = play_loss(make, tmp_path, lost_node=FAULTY, last_epoch=FIRST_EPOCH)
    gang.processes.pop(FAULTY)
    assert set(gang.all_ended()) == {EXIT_COMPLETE}, gang.logs()
    assert not gang.of("miscomputed")
    assert gang.digest == reference, gang.logs()
    steps = [line["step"] for line in read_lines(Path(gang.settings["bits"]))]
    assert steps.count(STEP + 1) == 2
