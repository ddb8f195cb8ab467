"""A sample of the kill matrix of sharded gangs: nodes are lost in each way, and memory is wrong in
each.
"""

from itertools import islice
from pathlib import Path

import pytest

from workloads.library.tests.bench.gangs import fault_lane as peer_play
from workloads.library.tests.bench.gangs import resize_lane
from workloads.library.tests.bench.gangs.fault_kinds import KINDS, TIMES, Blow, endless
from workloads.library.tests.bench.gangs.fault_lane import Found, Lane, Struck
from workloads.library.tests.bench.kill_lane import Records
from workloads.library.tests.fork_server import ForkServer

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]

# One point for each way in which a process reaches one; the points of epochs are drilled in the
# tests of elastic gangs. Where the bucket has a commit that is as new as the version in memory, it
# may be read instead.
SAMPLE = {
    "uncommitted damaged": {peer_play.CLEAN},
    "peer.send": {peer_play.MEMORY, peer_play.BUCKET},
    "gang.report": {peer_play.MEMORY, peer_play.BUCKET},
    "neighbors": {peer_play.BUCKET},
    "staged damaged": {peer_play.COPIES, peer_play.BUCKET},
    "newest damaged": {peer_play.VERSION, peer_play.BUCKET},
    "all damaged": {peer_play.BUCKET},
    "full": {peer_play.WITHOUT},
    "liar": {peer_play.VERSION, peer_play.BUCKET},
    "zombie": {peer_play.MEMORY, peer_play.BUCKET},
    "stopped": {peer_play.MEMORY, peer_play.BUCKET},
}


def test_gang_under_repeated_kills_keeps_its_bits(server: ForkServer, tmp_path: Path) -> None:
    results = Records(tmp_path / "results")
    blows = (Blow(kind=kind, place=(1 + number) % 4) for number, kind in enumerate(SAMPLE))
    Lane(
        folder=tmp_path,
        reference=peer_play.run_undisturbed(tmp_path / "undisturbed", server),
        results=results,
        server=server,
    ).play(blows)
    struck = results.of(Struck)
    gangs = results.of(Found)
    for gang in gangs:
        assert gang.wrong == []
        assert gang.zombies == []
        assert gang.stuck == ""
    assert {blow.kind for blow in struck} == {*SAMPLE}
    for blow in struck:
        assert blow.reached, blow
        assert not SAMPLE[blow.kind].isdisjoint(blow.taken), blow


def test_each_matrix_round_has_every_kind() -> None:
    round_length = sum(TIMES.get(kind, 1) for kind in KINDS)
    blows = islice(endless(1), round_length)
    assert {blow.kind for blow in blows} == {*KINDS}


def test_gang_that_changes_its_size_under_kills_keeps_its_bits(
    server: ForkServer, tmp_path: Path
) -> None:
    results = Records(tmp_path / "results")
    kinds = (resize_lane.SHRINK, resize_lane.HAND_OVER, resize_lane.JOINER)
    blows = (
        Blow(kind=kind, place=1 + number, delay_s=0.7 * number) for number, kind in enumerate(kinds)
    )
    resize_lane.Lane(
        folder=tmp_path,
        reference=resize_lane.run_undisturbed(tmp_path / "undisturbed", server),
        results=results,
        on_disk=True,
        server=server,
    ).play(blows)
    struck = results.of(resize_lane.Resized)
    for record in (*struck, *results.of(Found)):
        assert record.wrong == []
        assert record.zombies == []
    reasons = [gang.stuck for gang in results.of(Found)]
    assert reasons == [""]
    assert [blow.kind for blow in struck] == [*kinds]
    for blow in struck:
        assert min(blow.sizes) < 4, "each changed the size"
