"""A sample of `make kill-matrix`, through the real module: power losses at named points and at random moments."""

from pathlib import Path

import pytest

from holdfast.checkpoint.failpoints import POINTS
from tests.bench.kill_lane import TARGETS, Kill, Lane, Results, new_run
from tests.bench.kill_matrix import plan, verdict
from tests.workloads.library.training.runs import Run

SAMPLE = [
    Kill(target="all", after_steps=7, delay_s=0.03),
    Kill(target="upload.manifest", after_steps=1),
    Kill(target="commit.written", after_steps=1),
    Kill(target="restore.verified", after_steps=1),
    Kill(target="rank 1", after_steps=3, delay_s=0.01),
]


@pytest.mark.process
@pytest.mark.timeout(900)  # seven starts of torch
def test_a_run_killed_at_points_and_moments_ends_with_the_same_bits(tmp_path: Path) -> None:
    reference = new_run(Run, tmp_path / "undisturbed")
    assert reference.complete() == 0, reference.log()
    results = Results(path=tmp_path / "results")
    Lane(folder=tmp_path, reference=reference, results=results).play(iter(SAMPLE))
    result = verdict(results, len(SAMPLE))
    goals = result["goals"]
    assert isinstance(goals, dict)
    goals.pop("every_target_and_point_hit")  # of the whole matrix
    assert all(goals.values()), result


def test_the_plan_covers_every_point_and_target_and_repeats_with_its_seed() -> None:
    whole = plan(210, seed=1)
    assert {kill.target for kill in whole} == {*POINTS, *TARGETS}
    assert whole == plan(210, seed=1) != plan(210, seed=2)
