"""A sample of `make kill-matrix`, through the real command: power losses at named points and at random moments."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from holdfast.checkpoint.failpoints import POINTS
from workloads.library.tests.bench.kill_lane import LOST_STEPS_MAX, TARGETS, Kill, Lane, Results, new_run
from workloads.library.tests.bench.kill_matrix import plan, verdict
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.hooks import replaced
from workloads.library.tests.training.runs import Run

SAMPLE = [
    Kill(target="all", after_steps=7, delay_s=0.03),
    Kill(target="upload.manifest", after_steps=1),
    Kill(target="commit.written", after_steps=1),
    Kill(target="restore.verified", after_steps=1),
    Kill(target="rank 1", after_steps=3, delay_s=0.01),
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, server: ForkServer) -> Run:
    run = new_run(partial(Run, server=server), tmp_path_factory.mktemp("reference") / "undisturbed")
    assert run.complete() == 0, run.log()
    return run


@pytest.mark.process
@pytest.mark.timeout(900)
def test_a_run_killed_at_points_and_moments_ends_with_the_same_bits(
    tmp_path: Path, reference: Run, server: ForkServer
) -> None:
    results = Results(path=tmp_path / "results")
    kind = partial(Run, server=server)
    Lane(folder=tmp_path, reference=reference, results=results, kind=kind).play(iter(SAMPLE))
    result = verdict(results, len(SAMPLE))
    goals = result["goals"]
    assert isinstance(goals, dict)
    goals.pop("every_target_and_point_hit")  # of the whole matrix
    assert all(goals.values()), result


@dataclass(kw_only=True)
class NeverRestores(Run):
    """The mutant that bits alone do not show: every start begins at step 0."""

    def command(self) -> list[str]:
        name = "holdfast.checkpoint.format.commit:committed_steps"
        self.module = replaced(self.folder / "run.py", name, "changed = lambda *_: []")
        return super().command()


@pytest.mark.process
@pytest.mark.timeout(900)
def test_a_run_that_never_restores_fails_although_its_bits_are_right(
    tmp_path: Path, reference: Run, server: ForkServer
) -> None:
    results = Results(path=tmp_path / "results")
    kill = Kill(target="all", after_steps=LOST_STEPS_MAX + 1)
    kind = partial(NeverRestores, server=server)
    Lane(folder=tmp_path, reference=reference, results=results, kind=kind).play(iter([kill]))
    goals = verdict(results, 1)["goals"]
    assert isinstance(goals, dict)
    assert goals["loss_curve_and_parameters_bit_exact"]
    assert not goals["restores_happened"]
    assert not goals["newest_commit_never_moves_back"]
    assert not goals["lost_at_most_an_interval_and_what_was_in_flight"]


def test_the_plan_covers_every_point_and_target_and_repeats_with_its_seed() -> None:
    whole = plan(210, seed=1)
    assert {kill.target for kill in whole} == {*POINTS, *TARGETS}
    assert whole == plan(210, seed=1) != plan(210, seed=2)
