"""Tests of what a curve records and when a tracker in this process gets it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import Checkpointer
from holdfast.support.errors import InputError
from holdfast.training.curves.curve import Curve, Point, Tracker
from workloads.library.tests.processes import until


class FakeTracker(Tracker):
    """Keeps points as a tracker that cannot delete does, in a dict that outlives it."""

    def __init__(self, runs: dict[str, dict[str, list[Point]]]) -> None:
        self.runs = runs
        self.is_down = False
        self.refusals = 0
        self.endings: list[bool] = []
        self._run_id = ""

    def open(self, run_id: str, step: int) -> dict[str, int]:
        self._run_id = run_id
        lines = self.runs.setdefault(run_id, {})
        return {name: line[-1].step for name, line in lines.items()}

    def write(self, points: list[Point]) -> None:
        if self.is_down:
            self.refusals += 1
            raise OSError("no route to the tracker")
        lines = self.runs[self._run_id]
        for point in points:
            line = lines.setdefault(point.name, [])
            line.append(point)

    def close(self, *, is_complete: bool) -> None:
        self.endings.append(is_complete)


Runs = dict[str, dict[str, list[Point]]]


def list_steps(runs: Runs) -> list[list[int]]:
    """Returns the steps of the line `loss` in every run."""
    steps_by_run: list[list[int]] = []
    for lines in runs.values():
        points = lines.get("loss", [])
        steps_by_run.append([point.step for point in points])
    return steps_by_run


def make_state(curve: Curve) -> dict[str, Any]:
    return {
        "weight": torch.zeros(1),
        "curve": curve,
    }


def list_kept(curve: Curve) -> list[int]:
    """Returns the steps of the points that a curve keeps."""
    return [point.step for point in curve._points]


def train(
    url: Path,
    runs: Runs,
    steps: int,
    *,
    run: str = "r",
    start_from: str | None = None,
) -> Curve:
    curve = Curve(FakeTracker(runs))
    log_steps(curve, url, steps, run=run, start_from=start_from)
    return curve


def log_steps(
    curve: Curve,
    url: Path,
    steps: int,
    *,
    run: str = "r",
    start_from: str | None = None,
    follow: Callable[[int], object] | None = None,
) -> None:
    """Trains up to a step. `follow` is called after each save."""
    state = make_state(curve)
    with Checkpointer(url, state, run=run, every=2, start_from=start_from) as ckpt:
        for step in range(ckpt.step + 1, steps + 1):
            curve.log(step, {"loss": float(step)})
            ckpt.tick(step)
            if follow:
                assert ckpt.wait(60)
                follow(step)


@pytest.mark.process
def test_restarted_run_keeps_its_id_and_repeats_no_point(tmp_path: Path) -> None:
    runs: Runs = {}
    curves = [train(tmp_path, runs, steps) for steps in (3, 3, 8)]
    assert len({curve.id for curve in curves}) == 1
    assert list_steps(runs) == [[1, 2, 3, 4, 5, 6, 7, 8]]


@pytest.mark.process
def test_points_wait_in_the_checkpoint_for_a_tracker_that_is_down(tmp_path: Path) -> None:
    runs: Runs = {}
    tracker = FakeTracker(runs)
    tracker.is_down = True
    curve = Curve(tracker)
    log_steps(curve, tmp_path, 5)
    assert tracker.refusals
    assert list_steps(runs) == [[]]
    train(tmp_path, runs, 8)
    assert list_steps(runs) == [[1, 2, 3, 4, 5, 6, 7, 8]]


@pytest.mark.process
def test_a_tracker_that_comes_back_gets_all_points(tmp_path: Path) -> None:
    runs: Runs = {}
    tracker = FakeTracker(runs)
    tracker.is_down = True

    def repair(step: int) -> None:
        if step == 4:
            until(lambda: tracker.refusals, lambda: "no write", within_s=60)
            tracker.is_down = False

    log_steps(Curve(tracker), tmp_path, 6, follow=repair)
    assert list_steps(runs) == [[1, 2, 3, 4, 5, 6]]
    assert tracker.endings == [True]


@pytest.mark.process
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_unknown_tracker_failure_delays_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: Runs = {}
    tracker = FakeTracker(runs)
    write = tracker.write
    failures: list[Exception] = []

    def fail_once(points: list[Point]) -> None:
        if not failures:
            failures.append(ValueError("the tracker has a bug"))
            raise failures[0]
        write(points)

    monkeypatch.setattr(tracker, "write", fail_once)

    def wait_for_failure(step: int) -> None:
        if step == 4:
            until(lambda: failures, lambda: "no write", within_s=60)

    log_steps(Curve(tracker), tmp_path, 6, follow=wait_for_failure)
    assert list_steps(runs) == [[1, 2, 3, 4, 5, 6]]


@pytest.mark.process
def test_curve_serves_two_blocks_in_one_process(tmp_path: Path) -> None:
    runs: Runs = {}
    tracker = FakeTracker(runs)
    curve = Curve(tracker)
    for steps in (4, 8):
        log_steps(curve, tmp_path, steps)
    assert list_steps(runs) == [[1, 2, 3, 4, 5, 6, 7, 8]]
    assert tracker.endings == [True, True]


@pytest.mark.process
def test_branch_gets_its_own_curve(tmp_path: Path) -> None:
    runs: Runs = {}
    train(tmp_path, runs, 4)
    train(
        tmp_path,
        runs,
        6,
        run="other",
        start_from=f"{tmp_path}/r@4",
    )
    train(tmp_path, runs, 6)
    names = [run_id.partition("-")[0] for run_id in runs]
    assert names == ["r", "other"]
    original, branch = list_steps(runs)
    assert original == [1, 2, 3, 4, 5, 6]
    assert branch[-2:] == [5, 6]


@pytest.mark.process
def test_a_run_that_went_back_does_not_mix_with_its_former_curve(tmp_path: Path) -> None:
    runs: Runs = {}
    first = train(tmp_path, runs, 8)
    for commit in tmp_path.rglob("step-*8"):
        for file in sorted(commit.rglob("COMMIT.json")):
            file.unlink()
    second = train(tmp_path, runs, 8)
    former, latter = list_steps(runs)
    assert former == [1, 2, 3, 4, 5, 6, 7, 8]
    assert latter[-2:] == [7, 8]
    assert latter == sorted({*latter})
    assert second.id == f"{first.id}-6"


def began(*, is_coordinator: bool = True) -> Curve:
    curve = Curve(FakeTracker({}))
    curve.begin_run(
        "r",
        0,
        token="a",
        is_coordinator=is_coordinator,
    )
    return curve


def test_survivor_has_the_same_points() -> None:
    coordinator = began()
    survivor = began(is_coordinator=False)
    for curve in (coordinator, survivor):
        curve.log(1, {"loss": 1.0})
        curve.record_tick(1)
        curve.log(2, {"loss": 2.0})  # of the step that the loss interrupts
    assert not survivor.state_dict()["lines"], "one copy is enough"
    survivor.take_over()
    assert survivor.id == coordinator.id
    resumed = Curve(FakeTracker({}))
    resumed.load_state_dict(survivor.state_dict())
    resumed.begin_run("r", 1, token="b", is_coordinator=True)
    resumed.log(2, {"loss": 2.0})
    assert resumed.id == coordinator.id
    assert list_kept(resumed) == [1, 2]


def test_value_after_the_tick_has_its_step_and_waits_for_a_checkpoint() -> None:
    curve = began()
    curve.log_after_tick({"accuracy": 0.0})
    curve.log(1, {"loss": 1.0})
    curve.record_tick(1)
    resumed = Curve(FakeTracker({}))
    resumed.load_state_dict(curve.state_dict())
    resumed.begin_run("r", 1, token="b", is_coordinator=True)
    late = {
        "loss": 2.0,
        "accuracy": 1.0,
    }
    for recorder in (curve, resumed):
        recorder.log_after_tick(late)
        points = [(point.name, point.step, point.value) for point in recorder._points]
        assert sorted(points) == [
            ("accuracy", 0, 0.0),
            ("accuracy", 1, 1.0),
            ("loss", 1, 1.0),
        ]


def test_other_ranks_keep_the_points_since_two_commits() -> None:
    curve = began(is_coordinator=False)
    for step in range(1, 9):
        curve.log(step, {"loss": 0.0})
        curve.record_tick(step)
        if step % 2 == 0:
            curve.record_commit(step)
    assert list_kept(curve) == [7, 8]


def test_points_beyond_the_limit_are_dropped_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.training.curves.curve.MAX_POINTS", 10)
    curve = began()
    for step in range(1, 12):
        curve.log(step, {"loss": 0.0})
    assert list_kept(curve) == [7, 8, 9, 10, 11]
    assert "6 points are dropped" in caplog.text


def test_bad_points_are_refused_with_a_fix() -> None:
    with pytest.raises(InputError, match=r'add "curve": curve to the state'):
        Curve(FakeTracker({})).log(1, {"loss": 0.0})
    curve = began()
    with pytest.raises(InputError, match=r"loss\.item\(\)"):
        curve.log(1, {"loss": torch.zeros(2)})  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="a name that cannot be used"):
        curve.log(1, {"": 0.0})
    curve.log(1, {"loss": torch.zeros(1)})  # pyright: ignore[reportArgumentType]
    curve.record_tick(1)
    with pytest.raises(InputError, match=r"above ckpt\.tick"):
        curve.log(1, {"accuracy": 0.0})
