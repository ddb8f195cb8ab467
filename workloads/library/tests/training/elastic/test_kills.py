"""The drills of a gang: which member is lost, and when. One alone: test_elastic_gang."""

import pytest

from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.elastic.conftest import Make
from workloads.library.tests.training.elastic.kills import (
    SETTINGS,
    LedgerGang,
    Played,
    Strike,
    judge_gang,
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
# The least number of a drill's strikes that must have happened: a late place may never reach the
# point of its strike.
FEWEST = {"at many points": 4}
GATE = 40
GATED = {
    "during a grow": Strike(point="gang.join", place=2),
    "during a save": Strike(point="stage.end", place=0),
}
"""Drills with a gate at step GATE, which opens when the place asks to join after this strike."""
ALL_START_S = 20.0
"""Longer than a place takes to start on a busy machine: a late one would have too few steps."""


@pytest.fixture(scope="module")
def reference_digest(tmp_path_factory: pytest.TempPathFactory, server: ForkServer) -> str:
    """Digest of a run on one node that nothing happens to."""
    gang = LedgerGang(
        tmp_path_factory.mktemp("undisturbed"),
        server=server,
        nodes=1,
        **SETTINGS | {"pace_s": 0.0},
    )
    assert Played(gang, [], watch=gang.commits.note).wrong == []
    (digest,) = gang.digests()
    assert judge_gang(gang, digest) == []
    return digest


@pytest.mark.parametrize("drill", DRILLS)
def test_gang_losing_two_its_lead_or_all_keeps_its_bits(
    make: Make, reference_digest: str, drill: str
) -> None:
    gated = GATED.get(drill)
    settings = SETTINGS | {"gather_s": ALL_START_S}
    gang = make(kind=LedgerGang, **settings, **{"gate_step": GATE} if gated else {})
    assert isinstance(gang, LedgerGang)

    def opens_gate(played: Played) -> bool:
        # A place that came before the others were at the gate has been struck there.
        if not gated or len(played.struck) == len(DRILLS[drill]):
            return gated is not None
        lead = min({0, 1} - {gated.place})
        return gated.point in played.struck and gang.joining(gated.place, lead)

    played = Played(gang, DRILLS[drill], watch=gang.commits.note, opens_gate=opens_gate)
    assert played.wrong + judge_gang(gang, reference_digest) == []
    assert len(played.struck) >= FEWEST.get(drill, len(DRILLS[drill])), played.struck
