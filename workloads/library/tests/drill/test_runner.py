"""Tests the guarantees of the runner on any target: gate, consent, stop, rollback."""

import json
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from holdfast.drill import demo, store
from holdfast.drill.commands import run_all
from holdfast.drill.errors import DrillError, in_one_line
from holdfast.drill.plan import Drill
from holdfast.drill.runner import DrillRun, Record
from holdfast.drill.verdict import Verdict
from holdfast.support.errors import InputError, Stopped, Unjudged
from holdfast.vocabulary.exit_codes import EXIT_FINDINGS, EXIT_NOT_JUDGED
from workloads.library.tests.drill.by_hand import DRILL, ByHand, no_log

QUIET = partial(DrillRun, log=no_log)


def run_drill(target: ByHand) -> Record:
    return QUIET(DRILL, target).run()


def make_failing_call(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def fail_to_train() -> None:
    raise DrillError("nothing is trained in this test")


def test_a_good_drill_hits_its_blast_radius_and_no_more() -> None:
    target = ByHand()
    record = run_drill(target)
    assert record.verdict == Verdict.HELD
    assert record.fail_step == ""
    assert target.done == ["prepare", "inject one,two", "undone"]
    steps = [step for _, step, _ in record.timeline]
    assert steps == [
        "steady state",
        "targets",
        "fault",
        "recovery",
        "rollback",
    ]


def test_without_a_steady_state_nothing_is_injected() -> None:
    target = ByHand({"pulse": 0.0})
    record = run_drill(target)
    assert (record.verdict, record.fail_step, record.injected) == (
        Verdict.INCONCLUSIVE,
        "steady state",
        False,
    )
    assert target.done == ["prepare", "undone"]
    assert "expected pulse >= 1, got 0 after" in record.why


def test_log_lines_appear_in_the_printed_reason() -> None:
    target = ByHand()
    error = DrillError("PostgreSQL did not start:\n\n  could not judge: no server\n")
    target.prepare = make_failing_call(error)
    record = run_drill(target)
    assert record.timeline[0][2] == "PostgreSQL did not start: could not judge: no server"
    assert len(in_one_line("it ended:\n" + "a line of a log\n" * 100)) < 500


def test_a_refusal_stops_before_the_fault() -> None:
    def no(_drill: Drill, victims: Sequence[str]) -> None:
        raise Stopped("not", got=victims[0], allowed="none", fix="-")

    target = ByHand()
    record = QUIET(DRILL, target, consent=no).run()
    assert record.verdict == Verdict.STOPPED
    assert record.fail_step == "targets"
    assert record.why == "not: one"
    assert target.done == ["prepare", "undone"]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({"recovered_s": None}, (Verdict.BROKEN, "recovery", False)),
        ({"recovered_s": None, "harm": 1.0}, (Verdict.STOPPED, "recovery", False)),
        ({"pulse": 0.0}, (Verdict.BROKEN, "steady state after", True)),
    ],
    ids=["does not come back", "stop condition", "steady before and not after"],
)
def test_events_after_the_fault_decide_the_verdict(
    numbers: dict[str, float | None], expected: tuple[Verdict, str, bool]
) -> None:
    target = ByHand()
    target.on_inject = lambda: target.numbers.update(numbers)
    record = run_drill(target)
    assert (record.verdict, record.fail_step, record.deviated) == expected, record.why
    assert target.done[-1] == "undone"
    assert (record.why == "stopped: harm >= 1") is ("harm" in numbers)
    if expected[:2] == (Verdict.BROKEN, "recovery"):
        assert (record.results[0].measured or 0) >= DRILL.recovery_s


def test_a_fault_that_fails_halfway_is_judged() -> None:
    target = ByHand(
        {"pulse": 1.0, "lost": 3.0},
        on_inject=make_failing_call(DrillError("the API server refused\nand more")),
    )
    record = run_drill(target)
    assert record.verdict == Verdict.BROKEN
    assert record.fail_step == "fault"
    assert target.done[-1] == "undone"


def test_a_cluster_that_stops_answering_still_gives_a_journal(tmp_path: Path) -> None:
    target = ByHand()

    def lose_cluster() -> None:
        def fail(_metric: str) -> float | None:
            raise Unjudged("the cluster does not answer")

        target.measure = fail

    target.on_inject = lose_cluster
    target.on_undo = make_failing_call(Unjudged("the cluster does not answer"))
    code, (journal,) = run_all(
        [DRILL],
        tmp_path,
        lambda _drill, _folder: target,
        QUIET,
        quiet=True,
    )
    assert code == EXIT_NOT_JUDGED
    assert (journal["verdict"], journal["fail_step"]) == ("inconclusive", "recovery")
    measured = {objective["verdict"] for objective in journal["objectives"]}
    assert measured == {"not measured"}
    assert [step["succeeded"] for step in journal["rollbacks"]] == [False, True]
    assert list(tmp_path.glob(f"by-hand/*/{store.JOURNAL}"))


def test_a_failed_rollback_step_does_not_stop_the_others() -> None:
    target = ByHand(on_undo=make_failing_call(OSError("disk")))
    record = run_drill(target)
    assert record.fail_step == "rollback"
    assert record.why == "first: disk"
    assert target.done[-1] == "undone"
    failed, undone = record.rollbacks
    assert not failed["succeeded"]
    assert undone["succeeded"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_rolls_back_and_a_second_one_changes_nothing(signum: signal.Signals) -> None:
    send_signal = lambda: os.kill(os.getpid(), signum)  # noqa: E731
    target = ByHand(on_inject=send_signal, on_undo=send_signal)
    handler = signal.getsignal(signum)
    record = run_drill(target)
    assert record.verdict == Verdict.STOPPED
    assert record.signal == signum
    assert record.fail_step == "interrupted"
    assert target.done[-1] == "undone"
    assert signal.getsignal(signum) is handler


def test_the_journal_is_whole_and_two_runs_do_not_write_into_one_folder(tmp_path: Path) -> None:
    code, (journal,) = run_all(
        [DRILL], tmp_path, lambda _drill, _folder: ByHand(), QUIET, quiet=True
    )
    assert code == 0
    assert journal["drill"]["name"] == "by-hand"
    assert (journal["verdict"], journal["deviated"]) == ("held", False)
    assert len(journal["objectives"]) == 2
    for objective in journal["objectives"]:
        assert objective["verdict"] == "held"
    (path,) = tmp_path.glob(f"by-hand/*/{store.JOURNAL}")
    assert json.loads(path.read_text()) == json.loads(json.dumps(journal))
    refused = pytest.raises(InputError, match="another demo writes to this folder")
    with store.lock_folder(tmp_path, "demo"), refused, store.lock_folder(tmp_path, "demo"):
        pytest.fail("both write")


def test_a_demo_deletes_no_drills_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "train_twice", lambda _demo: fail_to_train())
    drills = tmp_path / "drills"
    run_all(
        [DRILL],
        drills,
        lambda _drill, _folder: ByHand(),
        QUIET,
        quiet=True,
    )
    with pytest.raises(InputError, match="contains something else"):
        demo.run_checkpoint_part(drills, seed=1)
    assert list(drills.glob(f"by-hand/*/{store.JOURNAL}"))
    locked = tmp_path / "locked"
    locked.mkdir()
    (locked / ".lock").touch()
    (locked / "work.txt").touch()
    with pytest.raises(InputError, match="contains something else"):
        demo.run_checkpoint_part(locked, seed=1)
    assert (locked / "work.txt").exists()


def test_a_demo_begins_again_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "train_twice", lambda _demo: fail_to_train())
    for folder in ("new", "of an earlier version"):
        out = tmp_path / folder
        assert demo.run_checkpoint_part(out, seed=1) == EXIT_FINDINGS
        (out / "summary.json").touch()
        if folder != "new":
            (out / ".lock").write_text("")
        assert demo.run_checkpoint_part(out, seed=1) == EXIT_FINDINGS
        assert not (out / "summary.json").exists()
