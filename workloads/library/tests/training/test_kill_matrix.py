"""A sample of `make kill-matrix`, through the real command: power losses at named points and at
random moments.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoint.failpoints import POINTS
from workloads.library.tests.bench.kill_lane import (
    LOST_STEPS_MAX,
    TARGETS,
    Comparison,
    Kill,
    Lane,
    Records,
    Start,
    new_run,
)
from workloads.library.tests.bench.kill_matrix import plan, verdict
from workloads.library.tests.fork_server import ForkServer

SAMPLE = [
    # so that the next start has a checkpoint to restore
    Kill(target="all", after_steps=13, delay_s=0.03),
    Kill(target="restore.verified", after_steps=1),
    Kill(target="rank 1", after_steps=3, delay_s=0.01),
    Kill(target="upload.manifest", after_steps=1),
]
TRIES = 3


def find_missed(results: Records, kills: int) -> set[str]:
    goals = verdict(results, kills)["goals"]
    assert isinstance(goals, dict)
    # of the whole matrix
    return {name for name, met in goals.items() if not met} - {"every_target_and_point_hit"}


def each_until_it_strikes(results: Records) -> Iterator[Kill]:
    """Repeats a kill until it hits: on a busy machine a run may be over before it."""
    for kill in SAMPLE:
        for _ in range(TRIES):
            yield kill
            if results.of(Start)[-1].struck:
                break


@pytest.mark.process
@pytest.mark.timeout(900)
def test_a_run_killed_at_points_and_moments_ends_with_the_same_bits(
    tmp_path: Path, server: ForkServer
) -> None:
    results = Records(tmp_path / "results")
    reference = new_run(server, tmp_path / "undisturbed")
    assert reference.complete() == 0, reference.log()
    Lane(
        folder=tmp_path,
        reference=reference,
        results=results,
        server=server,
    ).play(each_until_it_strikes(results))
    assert not find_missed(results, len(SAMPLE)), verdict(results, len(SAMPLE))


def test_a_run_that_never_restores_fails_although_its_bits_are_right(tmp_path: Path) -> None:
    results = Records(tmp_path / "results")
    lost_steps = LOST_STEPS_MAX + 1
    results.add(
        Start(
            target="all",
            struck=True,
            lost_steps=None,
            restored=0,
        )
    )
    results.add(
        Start(
            target="nothing",
            struck=False,
            lost_steps=lost_steps,
            restored=0,
            committed=lost_steps,
        )
    )
    results.add(Comparison(run="killed-1"))
    assert find_missed(results, 1) == {
        "restores_happened",
        "newest_commit_never_moves_back",
        "lost_at_most_an_interval_and_what_was_in_flight",
    }


def test_the_plan_covers_every_point_and_target_and_repeats_with_its_seed() -> None:
    whole = plan(210, seed=1)
    targets = {kill.target for kill in whole}
    assert targets == {*POINTS, *TARGETS}
    assert whole == plan(210, seed=1) != plan(210, seed=2)
