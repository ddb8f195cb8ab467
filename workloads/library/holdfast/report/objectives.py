"""Goals with what was measured and a verdict. Pure.

A goal is judged only on what the events or the summary hold; what they lack is inconclusive.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from holdfast.ledger.job_ledger import JobLedger
from holdfast.report.text import exactly
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
    """How many observations the verdict rests on."""


def judged(goal: str, held: bool | None, measured: str, n: int) -> Objective:
    # No observation holds every goal: "no loss in 0 evictions" must not turn green.
    verdict = ObjectiveVerdict.HELD if held else ObjectiveVerdict.BROKEN
    if held is None or n == 0:
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
    if _ours(ledgers, KIND_TRAINING):
        rows.append(_every_eviction_recovered(ledgers))
    return tuple(rows)


def _ours(ledgers: Iterable[JobLedger], kind: str) -> list[JobLedger]:
    """Neither a baseline nor the naive twin: the runs that must survive."""
    return [x for x in ledgers if x.kind == kind and not x.run.endswith(("-baseline", "-naive"))]


def _training(summary: Mapping[str, Any], ledgers: Sequence[JobLedger]) -> Iterable[Objective]:
    evictions = int(summary.get("evictions", 0))
    # Absent is not False: without a comparison there is no conclusion.
    exact = summary.get("bit_exact")
    if exact is None:
        found = "not compared"
    else:
        found = "identical to the last bit" if exact else "different"
    yield judged("final parameters equal those of an undisturbed run", exact, found, evictions)
    # 0 is a result here, so the check is for None.
    false = summary.get("false_completions")
    if false is not None:
        yield judged(
            "never called complete before the last step", false == 0, f"{false} times", evictions
        )
    losses = []
    for x in _ours(ledgers, KIND_TRAINING):
        for r in x.recoveries:
            losses.append(r.lost_steps)
    every = summary.get("save_every")
    if every and losses:
        # A kill can hit while the newest interval is still being uploaded, so two is the bound, not
        # one.
        goal = f"an eviction costs less than two checkpoint intervals of {every} steps"
        yield judged(goal, max(losses) < 2 * every, f"at most {max(losses)} steps", len(losses))


def _batch(summary: Mapping[str, Any]) -> Iterable[Objective]:
    documents = int(summary.get("documents", 0))
    kills = int(summary.get("kills", 0))
    for goal, key in (("no document lost", "lost"), ("no document stored twice", "duplicated")):
        number = summary.get(key)
        measured = "not counted" if number is None else f"{number} of {documents:,}"
        yield judged(
            f"{goal} under {kills} kills",
            None if number is None else number == 0,
            measured,
            documents,
        )
    same = summary.get("same_scores")
    if same is not None:
        yield judged(
            "scores equal those of an undisturbed run",
            same,
            "equal" if same else "different",
            documents,
        )


def _serving(summary: Mapping[str, Any]) -> Iterable[Objective]:
    requests = int(summary.get("requests", 0))
    evictions = int(summary.get("evictions", 0))
    failed = summary.get("failed")
    differ = summary.get("counts_differ")
    measured = "not counted" if failed is None else f"{failed} of {requests:,}"
    goal = f"no request failed under {evictions} evictions"
    yield judged(
        goal, None if failed is None else failed == 0, measured, requests if evictions else 0
    )
    if differ is not None:
        found = "equal" if differ == 0 else f"{differ:,} apart"
        yield judged(
            "clients, proxy and servers count the same answers", differ == 0, found, requests
        )


def _every_eviction_recovered(ledgers: Sequence[JobLedger]) -> Objective:
    """Training only: a batch's replacement may find the queue empty, so no worker has to come back."""
    recoveries = [r for x in _ours(ledgers, KIND_TRAINING) for r in x.recoveries]
    # The end of the events may cut a recovery off; it counts as broken, since a hang looks the
    # same.
    back = [r.seconds for r in recoveries if r.seconds is not None]
    slowest = f", slowest after {exactly(max(back))}" if back else ""
    measured = f"{len(back)} of {len(recoveries)}{slowest}"
    return judged(
        "training: work goes on after each eviction",
        len(back) == len(recoveries),
        measured,
        len(recoveries),
    )
