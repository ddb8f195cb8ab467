"""Judges goals by the events and the summary; a goal without a measurement is inconclusive."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from holdfast.ledger.job_ledger import JobLedger
from holdfast.report.text import precise_duration
from holdfast.report.totals import list_recovery_times
from holdfast.vocabulary.telemetry import KIND_TRAINING


class ObjectiveVerdict(StrEnum):
    HELD = "held"
    BROKEN = "broken"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    goal: str
    measured: str
    verdict: ObjectiveVerdict
    n: int
    """Number of observations behind the verdict."""


def judge(goal: str, is_met: bool | None, measured: str, n: int) -> Objective:
    """Returns the verdict on a goal; `is_met` is None if it was not measured."""
    verdict = ObjectiveVerdict.HELD if is_met else ObjectiveVerdict.BROKEN
    # Without an observation every goal is met, but "no loss in 0 evictions" must not turn green.
    if is_met is None or n == 0:
        verdict = ObjectiveVerdict.INCONCLUSIVE
    return Objective(
        goal=goal,
        measured=measured,
        verdict=verdict,
        n=n,
    )


def objectives(ledgers: Sequence[JobLedger], summary: Mapping[str, Any]) -> tuple[Objective, ...]:
    training = summary.get("training")
    batch = summary.get("batch")
    rows: list[Objective] = []
    if training:
        rows += _training(training, ledgers)
    if batch:
        rows += _batch(batch)
    serving = summary.get("serving")
    if serving:
        rows += _serving(serving)
    runs = _list_training_runs(ledgers)
    if runs:
        rows.append(_judge_recoveries(runs))
    return tuple(rows)


def _list_training_runs(ledgers: Iterable[JobLedger]) -> list[JobLedger]:
    """Returns the training runs that must survive: no baseline and no naive twin."""
    runs: list[JobLedger] = []
    for ledger in ledgers:
        is_comparison = ledger.run.endswith(("-baseline", "-naive"))
        if ledger.kind == KIND_TRAINING and not is_comparison:
            runs.append(ledger)
    return runs


def _training(summary: Mapping[str, Any], ledgers: Sequence[JobLedger]) -> Iterable[Objective]:
    evictions = int(summary.get("evictions", 0))
    # A missing comparison is not a difference: there is no conclusion without it.
    is_exact = summary.get("bit_exact")
    if is_exact is None:
        comparison = "not compared"
    else:
        comparison = "identical to the last bit" if is_exact else "different"
    goal = "final parameters equal those of an undisturbed run"
    yield judge(goal, is_exact, comparison, evictions)
    count = summary.get("false_completions")
    if count is not None:
        goal = "never called complete before the last step"
        yield judge(goal, count == 0, f"{count} times", evictions)
    losses: list[int] = []
    for ledger in _list_training_runs(ledgers):
        for recovery in ledger.recoveries:
            losses.append(recovery.lost_steps)
    interval = summary.get("save_every")
    if interval and losses:
        # Two intervals: a kill can hit while the newest one is still being uploaded.
        goal = f"an eviction costs less than two checkpoint intervals of {interval} steps"
        largest = max(losses)
        yield judge(goal, largest < 2 * interval, f"at most {largest} steps", len(losses))


def _batch(summary: Mapping[str, Any]) -> Iterable[Objective]:
    documents = int(summary.get("documents", 0))
    kills = int(summary.get("kills", 0))
    for goal, key in (("no document lost", "lost"), ("no document stored twice", "duplicated")):
        count = summary.get(key)
        yield _judge_count(f"{goal} under {kills} kills", count, documents, documents)
    is_equal = summary.get("same_scores")
    if is_equal is not None:
        goal = "scores equal those of an undisturbed run"
        yield judge(goal, is_equal, "equal" if is_equal else "different", documents)


def _judge_count(goal: str, count: int | None, total: int, n: int) -> Objective:
    """Judges the goal of a count of 0; a missing count is inconclusive."""
    if count is None:
        return judge(goal, None, "not counted", n)
    return judge(goal, count == 0, f"{count} of {total:,}", n)


def _serving(summary: Mapping[str, Any]) -> Iterable[Objective]:
    requests = int(summary.get("requests", 0))
    evictions = int(summary.get("evictions", 0))
    failures = summary.get("failed")
    goal = f"no request failed under {evictions} evictions"
    yield _judge_count(goal, failures, requests, requests if evictions else 0)
    difference = summary.get("counts_differ")
    if difference is not None:
        goal = "clients, proxy and servers count the same answers"
        comparison = "equal" if difference == 0 else f"{difference:,} apart"
        yield judge(goal, difference == 0, comparison, requests)


def _judge_recoveries(training: Sequence[JobLedger]) -> Objective:
    """Judges that training continued after each eviction.

    Batch workers are not judged: a replacement may find the queue empty.
    """
    evictions = sum(len(ledger.recoveries) for ledger in training)
    durations = list_recovery_times(training)
    measured = f"{len(durations)} of {evictions}"
    if durations:
        measured += f", slowest after {precise_duration(max(durations))}"
    # A recovery that the end of the events cuts off counts as broken: a hang looks the same.
    is_met = len(durations) == evictions
    return judge("training: work goes on after each eviction", is_met, measured, evictions)
