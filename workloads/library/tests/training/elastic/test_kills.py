"""The drills of a gang: which member is lost, and when. One alone: test_elastic_gang."""

import pytest

from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.elastic.conftest import Make
from workloads.library.tests.training.elastic.kills import (
    SETTINGS,
    LedgerGang,
    Played,
    Strike,
    judged,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

STEP = 15
DRILLS = {
    "two": [
        Strike(point="gang.reduce", place=1, count=STEP),
        Strike(point="gang.reduce", place=2, count=STEP),
    ],
    "rank 0": [Strike(point="gang.reduced", place=0, count=STEP)],
    "all": [Strike(point="gang.reduce", place=place, count=STEP) for place in range(3)],
    "during a grow": [
        Strike(point="gang.reduce", place=2, count=STEP),
        Strike(point="gang.join", place=2),
        Strike(point="gang.synchronize", place=2),
    ],
    "during a save": [Strike(point="stage.end", place=0), Strike(point="stage.begin", place=0)],
    "at many points": [
        Strike(point="gang.connect", place=1),
        Strike(point="gang.reduced", place=0, count=5),
        Strike(point="gang.proposed", place=0),
        Strike(point="gang.report", place=2),
        Strike(point="gang.join", place=2),
        Strike(point="gang.synchronize", place=1),
        Strike(point="stage.end", place=0),
    ],
}
# How many of a drill's strikes must have come: a point that a late place never reaches strikes
# nobody.
FEWEST = {"at many points": 4}
GATE = 40
"""The step at which the others wait for the place that is struck while it joins."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, server: ForkServer) -> str:
    """Digest of one node that nothing happens to."""
    gang = LedgerGang(
        tmp_path_factory.mktemp("undisturbed"),
        server=server,
        nodes=1,
        **SETTINGS | {"pace_s": 0.0},
    )
    assert Played(gang, [], watch=gang.commits.note).wrong == []
    (digest,) = gang.digests()
    assert judged(gang, digest) == []
    return digest


@pytest.mark.parametrize("drill", DRILLS)
def test_gang_losing_two_its_lead_or_all_keeps_its_bits(
    make: Make, undisturbed: str, drill: str
) -> None:
    grows = drill == "during a grow"
    gang = make(kind=LedgerGang, **SETTINGS, **{"gate_step": GATE} if grows else {})
    assert isinstance(gang, LedgerGang)
    played = Played(
        gang,
        DRILLS[drill],
        watch=gang.commits.note,
        opens_gate=lambda now: grows and "gang.join" in now.struck and gang.joining(2),
    )
    assert played.wrong + judged(gang, undisturbed) == []
    assert len(played.struck) >= FEWEST.get(drill, len(DRILLS[drill])), played.struck
