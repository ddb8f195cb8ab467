"""What event lines add to a list of jobs."""

import json
from pathlib import Path

import pytest

from workloads.jobs.job_snapshot import when
from workloads.jobs.losses import Count
from workloads.jobs.progress import Progress, progress_text, read_progress
from workloads.jobs.show import counted


def write(path: Path, *events: dict[str, object]) -> None:
    path.write_text("".join(json.dumps({"v": 1, "job": "j", "kind": "training"} | e) + "\n" for e in events))


def test_steps_done_twice_count_once_as_useful(tmp_path: Path) -> None:
    write(
        tmp_path / "a.jsonl",
        {"t": 100.0, "event": "start", "rank": 0},
        {"t": 110.0, "event": "window", "first_step": 1, "last_step": 10, "seconds": 10.0},
        {"t": 112.0, "event": "commit", "step": 10},
        {"t": 122.0, "event": "window", "first_step": 11, "last_step": 20, "seconds": 10.0},
    )
    write(
        tmp_path / "b.jsonl",
        {"t": 130.0, "event": "restore", "step": 10},
        {"t": 140.0, "event": "window", "first_step": 11, "last_step": 20, "seconds": 10.0},
    )
    found = read_progress(tmp_path, now=150.0)["j"]
    assert found.step == 20
    assert found.saved_age_s == pytest.approx(38.0)
    assert found.useful_ratio == pytest.approx(20 / 40)


def test_lines_that_are_no_events_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "torn.jsonl").write_text('not json\n[1]\n{"t": 1.0}\n{"t": 1.0, "event": "start", "job": "j"')
    assert read_progress(tmp_path, now=2.0) == {}


def test_kubernetes_time_is_read_as_utc() -> None:
    assert when("1970-01-01T00:01:00Z") == 60.0


def test_a_count_that_is_a_lower_bound_shows_it() -> None:
    assert (counted(Count(3)), counted(Count(3, exact=False))) == ("3", "3+")


def test_only_rank_0_that_left_after_a_notice_counts_as_an_eviction(tmp_path: Path) -> None:
    write(
        tmp_path / "a.jsonl",
        {"t": 1.0, "event": "exit", "rank": 0, "code": 143, "step": 4},
        {"t": 1.0, "event": "exit", "rank": 1, "code": 143, "step": 4},
        {"t": 2.0, "event": "exit", "rank": 0, "code": 70, "step": 5},
    )
    assert read_progress(tmp_path, now=3.0)["j"].notices == 1


def test_a_job_that_runs_shows_its_progress() -> None:
    assert progress_text(Progress()) == ""
    found = Progress(step=1200, saved_age_s=40.4, useful_ratio=0.618)
    assert progress_text(found) == "useful 62 % of its time, step 1200, saved 40 s ago"
