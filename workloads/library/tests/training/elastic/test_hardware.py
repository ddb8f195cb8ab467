"""A machine that computes wrong is found where a step is done again by others."""

import signal
from typing import Any

import pytest

from holdfast.vocabulary.exit_codes import EXIT_COMPLETE, EXIT_RETRY
from workloads.library.tests.training.elastic.conftest import Make
from workloads.library.tests.training.elastic.gangs import Gang

pytestmark = pytest.mark.process

KILLED = -signal.SIGKILL
STEP = 12
HIGH_BIT = 25


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of a run on one sound machine."""
    return Gang(tmp_path_factory.mktemp("undisturbed"), nodes=1, shards=8).compute_digest()


def play_death(make: Make, *, nodes: int, faulty: int, **fault: Any) -> Gang:
    """Kills the last member in step 12, whose other members have computed it."""
    gang = make(nodes=nodes, shards=8, gate_step=STEP)
    sound = [place for place in range(nodes) if place != faulty]
    gang.start(*sound)
    gang.start(faulty, faults=[{"step": STEP, "bit": HIGH_BIT, **fault}])
    gang.until(lambda: gang.at_gate(STEP, *range(nodes)))
    gang.signal(nodes - 1, signal.SIGKILL)
    gang.open_gate()
    return gang


@pytest.mark.parametrize(
    "fault",
    [{}, {"tries": 1_000, "lasts": True}],
    ids=["transient", "lasting"],
)
@pytest.mark.parametrize("faulty", [0, 1])
def test_member_with_wrong_gradients_is_named_and_they_are_not_applied(
    make: Make, reference: str, fault: dict[str, Any], faulty: int
) -> None:
    gang = play_death(make, nodes=4, faulty=faulty, **fault)
    gang.ends_with(reference, 4, 3, 2, codes={3: KILLED, faulty: EXIT_RETRY})
    named = [(line["step"], line["rank"]) for line in gang.of("miscomputed")]
    assert named == [(STEP, faulty)], gang.logs()
    assert f"member {faulty} computed wrong, and leaves the gang" in gang.logs()


def test_second_try_names_the_faulty_one(make: Make, reference: str) -> None:
    gang = play_death(make, nodes=3, faulty=1)
    gang.ends_with(reference, 3, 2, 1, codes={2: KILLED, 1: EXIT_RETRY})
    assert [line["rank"] for line in gang.of("miscomputed")] == [1], gang.logs()


def test_a_fault_in_a_step_that_is_not_done_again_is_not_noticed(
    make: Make, reference: str
) -> None:
    """The page says so."""
    gang = make(nodes=3, shards=8)
    gang.start(0, 2)
    gang.start(1, faults=[{"step": STEP, "bit": HIGH_BIT}])
    assert set(gang.all_ended()) == {EXIT_COMPLETE}, gang.logs()
    assert gang.digests() != {reference}
    assert not gang.of("miscomputed")
