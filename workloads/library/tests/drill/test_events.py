"""Tests the reading of event lines and the schedules of evictions."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.drill.events import Follower
from holdfast.drill.plan import DrillWork
from holdfast.drill.targets.local import SIGTERM, make_schedule
from holdfast.drill.targets.local_training import LocalTraining
from holdfast.ledger.job_summary import read_job_summaries
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE
from workloads.library.tests import sample
from workloads.library.tests.sample import EPOCH, line


def test_whole_lines_are_read_and_a_line_cut_by_a_kill_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    follower = Follower(path)
    assert follower.read() == []
    rows = [line(EPOCH, "start"), line(EPOCH + 1, "window", last_step=3)]
    start, window = sample.encoded(rows)
    path.write_bytes(b'{"event": "window", "last_st\n' + start + b"\n[1]\n" + window[:20])
    (event,) = follower.read()
    assert event["event"] == "start"
    with path.open("ab") as file:
        file.write(window[20:] + b"\n")
    (event,) = follower.read()
    assert event["event"] == "window"
    assert follower.last("window", "last_step") == 3


def test_losses_and_recoveries_match_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    follower = Follower(path)
    assert follower.summary() is None
    sample.write(path, sample.kill_and_restore("job"))
    follower.read()
    summary = follower.summary()
    assert summary is not None
    assert summary.lost == 55
    assert summary.recovery_times_s == pytest.approx((92.4,))
    assert summary == read_job_summaries(tmp_path)["job"]


def test_schedules_are_seeded_ordered_and_alternate() -> None:
    schedule = make_schedule(
        seed=3,
        count=6,
        total=240,
        first=20,
    )
    assert schedule == make_schedule(
        seed=3,
        count=6,
        total=240,
        first=20,
    )
    assert schedule != make_schedule(
        seed=4,
        count=6,
        total=240,
        first=20,
    )
    progress: list[int] = []
    signals: set[str] = set()
    for eviction in schedule:
        progress.append(eviction.progress)
        signals.add(eviction.signal)
    assert progress == sorted(progress)
    assert min(progress) >= 20
    assert max(progress) <= 216
    assert signals == {"SIGTERM", "SIGKILL"}


class EndedTraining(LocalTraining):
    """Its pod has exited with 0 before the signal, or because of it."""

    def evict(self, pod: Any, signal: str) -> int:
        return EXIT_COMPLETE


@pytest.mark.parametrize(("last_step", "false_ends"), [(39, [39]), (40, [])])
def test_training_that_ended_before_its_eviction_did_not_end_falsely(
    tmp_path: Path, last_step: int, false_ends: list[int]
) -> None:
    """A fast device does the last steps before the signal is sent."""
    run = EndedTraining(
        tmp_path,
        DrillWork.TRAINER,
        save_every=10,
        steps=40,
    )
    pod: Any = SimpleNamespace()
    run._pod = pod
    run._log.emit(
        "window",
        first_step=1,
        last_step=last_step,
        seconds=1.0,
        loss=1.0,
    )
    run._evict_attempt(SIGTERM)
    run.close()
    assert run.false_ends == false_ends
