"""The content of a report as plain data, which page.py draws and `--json` prints."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.cost.money import Money
from holdfast.ledger.job_ledger import KINDS, JobLedger
from holdfast.report.capacity import Capacities
from holdfast.report.objectives import Objective, objectives
from holdfast.report.sentences import answer, next_steps, pays
from holdfast.report.teams import TeamCost
from holdfast.report.text import plural, precise_duration
from holdfast.report.totals import add_up, list_recovery_times
from holdfast.support.values import finite
from holdfast.vocabulary.telemetry import KIND_BATCH, KIND_TRAINING

# Programs read this JSON: a removed field or another unit needs a new number.
SCHEMA = "holdfast.report/4"
# Jobs of one experiment share a stem; the suffix names the role of a job in the comparison.
BASELINE = "-baseline"
NAIVE = "-naive"


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One number in a large font."""

    label: str
    value: str
    note: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    answer: str
    figures: tuple[Figure, ...]
    objectives: tuple[Objective, ...]
    ledgers: tuple[JobLedger, ...]
    next_steps: tuple[str, ...]
    problems: Mapping[str, int] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    capacity: Capacities = field(default_factory=Capacities)
    money: Money | None = None
    teams: tuple[TeamCost, ...] = ()
    """Receipts by team."""

    def of_kind(self, kind: str) -> list[JobLedger]:
        return [ledger for ledger in self.ledgers if ledger.kind == kind]

    def as_json(self) -> dict[str, Any]:
        totals: dict[str, Any] = {}
        for kind in KINDS:
            ledgers = self.of_kind(kind)
            if ledgers:
                totals[kind] = add_up(kind, ledgers).as_json()
        return {
            "schema": SCHEMA,
            "answer": self.answer,
            "objectives": [asdict(objective) for objective in self.objectives],
            "totals": totals,
            "jobs": [job_row(ledger) for ledger in self.ledgers],
            "capacity": self.capacity.as_json(),
            "money": money_row(self.money) if self.money else None,
            "teams": [asdict(cost) for cost in self.teams],
            "next_steps": list(self.next_steps),
            "problems": dict(self.problems),
            "summary": dict(self.summary),
        }


def build(
    ledgers: Sequence[JobLedger],
    problems: Mapping[str, int],
    summary: Mapping[str, Any],
    capacity: Capacities = Capacities(),
    money: Money | None = None,
) -> Report:
    """Builds a report; ledgers are sorted by kind, role and name.

    `problems` counts unusable event lines by reason, and `summary` is that of a demo or a drill.
    """
    ordered_ledgers = tuple(sorted(ledgers, key=_sort_key))
    goals = objectives(ordered_ledgers, summary)
    return Report(
        # The answer is about money only if a price is known.
        answer=pays(money) if money else answer(ordered_ledgers, summary),
        figures=figures(ordered_ledgers, summary),
        objectives=goals,
        ledgers=ordered_ledgers,
        next_steps=next_steps(ordered_ledgers, goals, problems),
        problems=problems,
        summary=summary,
        capacity=capacity,
        money=money,
    )


def _sort_key(ledger: JobLedger) -> tuple[bool, int, str]:
    return ledger.kind != KIND_TRAINING, role_order(ledger.run), ledger.run


def money_row(money: Money) -> dict[str, Any]:
    """Returns the money as JSON; null stands for infinity: `at any churn`, or `no upper bound`."""
    return asdict(money) | {
        "pays": money.pays,
        "interval": finite(money.interval),
        "flip_per_node_h": finite(money.flip_per_node_h),
    }


def role_order(job: str) -> int:
    """Returns 0 for a baseline, 2 for a naive twin and 1 for the runs that must survive."""
    if job.endswith(BASELINE):
        return 0
    return 2 if job.endswith(NAIVE) else 1


def job_row(ledger: JobLedger) -> dict[str, Any]:
    recoveries: list[dict[str, Any]] = []
    for recovery in ledger.recoveries:
        recoveries.append(asdict(recovery) | {"seconds": recovery.seconds})
    return {
        "job": ledger.run,
        "kind": ledger.kind,
        "seconds": round(ledger.seconds, 3),
        "lanes": ledger.lanes,
        "goodput": round(ledger.goodput, 4),
        "evictions": len(ledger.recoveries),
        "lost": ledger.lost,
        "restarts": [restart._asdict() for restart in ledger.restarts],
        "states_seconds": {state.value: us / 1e6 for state, us in ledger.totals_us.items()},
        "recoveries": recoveries,
    }


def figures(ledgers: Sequence[JobLedger], summary: Mapping[str, Any]) -> tuple[Figure, ...]:
    """Returns the figures that follow from the events or the summary."""
    runs = [ledger for ledger in ledgers if role_order(ledger.run) == 1]
    training = [ledger for ledger in runs if ledger.kind == KIND_TRAINING]
    return (
        *_eviction_figures(runs),
        *_goodput_figures(training),
        *_recovery_figures(runs),
        *_restart_figures(training),
        *_document_figures(runs, summary.get("batch", {})),
        *_request_figures(summary.get("serving", {})),
    )


def _eviction_figures(runs: Sequence[JobLedger]) -> Iterator[Figure]:
    if not runs:
        return
    evictions = 0
    kills = 0
    for ledger in runs:
        for recovery in ledger.recoveries:
            evictions += 1
            if recovery.signal.upper() in ("SIGKILL", "KILL"):
                kills += 1
    yield Figure(
        label="evictions",
        value=str(evictions),
        note=f"{kills} of them without warning",
    )


def _goodput_figures(training: Sequence[JobLedger]) -> Iterator[Figure]:
    if not training:
        return
    # Weighted by time: in a mean of shares, a job of a minute would count as much as a week.
    total = add_up(KIND_TRAINING, training)
    yield Figure(
        label="useful training time",
        value=f"{total.goodput:.0%}" if total.wall_us else "none",
        note=f"{total.lost} steps done again",
    )


def _recovery_figures(runs: Sequence[JobLedger]) -> Iterator[Figure]:
    for kind in (KIND_TRAINING, KIND_BATCH):
        ledgers = [ledger for ledger in runs if ledger.kind == kind]
        evictions = sum(len(ledger.recoveries) for ledger in ledgers)
        # Evictions without a recovery have no duration; the objectives show them.
        durations = list_recovery_times(ledgers)
        if durations:
            yield Figure(
                label=f"{kind} back at work, median",
                value=precise_duration(statistics.median(durations)),
                note=(
                    f"after {len(durations)} of {plural(evictions, 'eviction')}, the slowest"
                    f" {precise_duration(max(durations))}"
                ),
            )


def _restart_figures(training: Sequence[JobLedger]) -> Iterator[Figure]:
    restarts = 0
    durations: list[float] = []
    for ledger in training:
        for restart in ledger.restarts:
            restarts += 1
            if restart.from_memory:
                durations.append(restart.seconds)
    if durations:
        yield Figure(
            label="restarts from memory",
            value=str(len(durations)),
            note=f"of {restarts}, the slowest in {precise_duration(max(durations))}",
        )


def _document_figures(runs: Sequence[JobLedger], batch: Mapping[str, Any]) -> Iterator[Figure]:
    documents = batch.get("documents")
    if not documents or all(ledger.kind != KIND_BATCH for ledger in runs):
        return
    # A missing count is "?": it is not known to be 0.
    yield Figure(
        label="documents stored once",
        value=f"{documents:,}",
        note=f"{batch.get('lost', '?')} lost, {batch.get('duplicated', '?')} duplicated",
    )


def _request_figures(serving: Mapping[str, Any]) -> Iterator[Figure]:
    requests = serving.get("requests")
    if not requests:
        return
    failures = serving.get("failed", "?")
    evictions = serving.get("evictions", "?")
    yield Figure(
        label="online requests",
        value=f"{requests:,}",
        note=f"{failures} failed, through {evictions} evictions",
    )
