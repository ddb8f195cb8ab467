"""A few kills of a gang at named points, one after the other; `make soak-elastic` plays three hundred and more."""

from pathlib import Path

import pytest

from tests.workloads.library.training.elastic.kills import SETTINGS, Strike, WarmGang, play, prepared, undisturbed

pytestmark = pytest.mark.process

STRIKES = [
    Strike(at="gang.connect", place=1),
    Strike(at="gang.reduced", place=0, count=9),
    Strike(at="gang.proposed", place=0),
    Strike(at="gang.report", place=2),
    Strike(at="gang.join", place=2),
    Strike(at="gang.synchronize", place=1),
    Strike(at="stage.end", place=0),
]


def test_a_gang_that_is_struck_at_many_points_ends_with_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    prepared()
    reference = undisturbed(tmp_path / "undisturbed")
    gang = WarmGang(tmp_path / "gang", nodes=3, **SETTINGS)
    try:
        outcome = play(gang, STRIKES, reference)
    finally:
        gang.close()
    assert outcome.wrong == []
    assert len(outcome.struck) >= 4, outcome.struck
