"""A sample of the kill matrix of sharded gangs: nodes are lost in each way, and memory is wrong in
each.
"""

from itertools import islice
from pathlib import Path

import pytest

from workloads.library.tests.bench.gangs import fault_lane as peer_play
from workloads.library.tests.bench.gangs.fault_kinds import KINDS, TIMES, Blow, endless
from workloads.library.tests.bench.gangs.fault_lane import Found, Lane, Struck
from workloads.library.tests.bench.kill_lane import Records

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]

# Of each way in which a process meets a point, one; those of an elastic gang's epochs are drilled
# there. Where the bucket has a commit that is as new as the version in memory, it may be read
# instead.
SAMPLE = {
    "uncommitted damaged": {peer_play.CLEAN},
    "peer.send": {peer_play.MEMORY, peer_play.BUCKET},
    "gang.report": {peer_play.MEMORY, peer_play.BUCKET},
    "neighbours": {peer_play.BUCKET},
    "staged damaged": {peer_play.COPIES, peer_play.BUCKET},
    "newest damaged": {peer_play.VERSION, peer_play.BUCKET},
    "all damaged": {peer_play.BUCKET},
    "full": {peer_play.WITHOUT},
    "liar": {peer_play.VERSION, peer_play.BUCKET},
    "zombie": {peer_play.MEMORY, peer_play.BUCKET},
    "stopped": {peer_play.MEMORY, peer_play.BUCKET},
}


def test_every_start_of_a_gang_that_is_struck_again_and_again_has_the_bits_of_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    results = Records(tmp_path / "results")
    blows = (Blow(kind=kind, place=(1 + number) % 4) for number, kind in enumerate(SAMPLE))
    Lane(
        folder=tmp_path,
        reference=peer_play.undisturbed(tmp_path / "undisturbed"),
        results=results,
    ).play(blows)
    struck = results.of(Struck)
    ended = results.of(Found)
    assert [(gang.wrong, gang.zombies, gang.stuck) for gang in ended] == [([], [], "")] * len(ended)
    assert {each.kind for each in struck} == {*SAMPLE}
    assert all(each.reached for each in struck), struck
    assert {
        each.kind: each.taken for each in struck if SAMPLE[each.kind].isdisjoint(each.taken)
    } == {}


def test_a_round_of_the_matrix_has_every_kind() -> None:
    assert {
        blow.kind for blow in islice(endless(1), sum(TIMES.get(kind, 1) for kind in KINDS))
    } == {*KINDS}
