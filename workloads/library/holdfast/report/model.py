"""The content of a report, as plain data: what page.py draws and `--json` prints.

Pure: ledgers, problems and the demo's summary in; a Report out.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.cost.money import Money
from holdfast.ledger.job_ledger import KINDS, JobLedger
from holdfast.report.capacity import Capacities
from holdfast.report.objectives import Objective, objectives
from holdfast.report.sentences import answer, next_steps, pays
from holdfast.report.teams import TeamCost
from holdfast.report.text import exactly
from holdfast.report.totals import totals_of
from holdfast.support.values import finite
from holdfast.vocabulary.telemetry import KIND_BATCH, KIND_TRAINING

# Others read this JSON: a field that goes or changes its unit needs a new number.
SCHEMA = "holdfast.report/4"
# Jobs of one experiment share a stem; the suffix names what a job is compared as.
BASELINE = "-baseline"
NAIVE = "-naive"


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One number worth a large font."""

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
    problems: Mapping[str, int] = field(default_factory=dict[str, int])
    summary: Mapping[str, Any] = field(default_factory=dict[str, Any])
    capacity: Capacities = field(default_factory=Capacities)
    money: Money | None = None
    teams: tuple[TeamCost, ...] = ()
    """Receipts by team."""

    def of_kind(self, kind: str) -> list[JobLedger]:
        return [ledger for ledger in self.ledgers if ledger.kind == kind]

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "answer": self.answer,
            "objectives": [asdict(o) for o in self.objectives],
            "totals": {
                kind: totals_of(kind, found).as_json()
                for kind in KINDS
                if (found := self.of_kind(kind))
            },
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
    ordered = tuple(
        sorted(
            ledgers,
            key=lambda ledger: (ledger.kind != KIND_TRAINING, role_order(ledger.run), ledger.run),
        )
    )
    goals = objectives(ordered, summary)
    return Report(
        # With a price the question is money; without one a sentence about money would be made up.
        answer=pays(money) if money else answer(ordered, summary),
        figures=figures(ordered, summary),
        objectives=goals,
        ledgers=ordered,
        next_steps=next_steps(ordered, goals, problems),
        problems=problems,
        summary=summary,
        capacity=capacity,
        money=money,
    )


def money_row(money: Money) -> dict[str, Any]:
    """JSON knows no infinity: null is `at any churn`, or `no upper bound`."""
    row = asdict(money) | {
        "pays": money.pays,
        "interval": finite(money.interval),
    }
    return row | {"flip_per_node_h": finite(money.flip_per_node_h)}


def role_order(job: str) -> int:
    return 0 if job.endswith(BASELINE) else 2 if job.endswith(NAIVE) else 1


def job_row(ledger: JobLedger) -> dict[str, Any]:
    return {
        "job": ledger.run,
        "kind": ledger.kind,
        "seconds": round(ledger.seconds, 3),
        "lanes": ledger.lanes,
        "goodput": round(ledger.goodput, 4),
        "evictions": len(ledger.recoveries),
        "lost": ledger.lost,
        "restarts": [each._asdict() for each in ledger.restarts],
        "states_seconds": {state.value: us / 1e6 for state, us in ledger.totals_us.items()},
        "recoveries": [asdict(r) | {"seconds": r.seconds} for r in ledger.recoveries],
    }


def figures(ledgers: Sequence[JobLedger], summary: Mapping[str, Any]) -> tuple[Figure, ...]:
    """What survived, in a few numbers; only those that follow from the events or the summary."""
    ours = [ledger for ledger in ledgers if role_order(ledger.run) == 1]
    shown: list[Figure] = []
    training = [ledger for ledger in ours if ledger.kind == KIND_TRAINING]
    batch = [ledger for ledger in ours if ledger.kind == KIND_BATCH]
    recoveries = [r for ledger in ours for r in ledger.recoveries]
    if ours:
        kills = sum(r.signal.upper() in ("SIGKILL", "KILL") for r in recoveries)
        shown.append(
            Figure(
                label="evictions",
                value=str(len(recoveries)),
                note=f"{kills} of them without warning",
            )
        )
    if training:
        # Weighed by time: a mean of shares would let a job of a minute outweigh a week.
        total = totals_of(KIND_TRAINING, training)
        value = f"{total.goodput:.0%}" if total.wall_us else "none"
        shown.append(
            Figure(
                label="useful training time",
                value=value,
                note=f"{total.lost} steps done again",
            )
        )
    # Those that never came back have no time; they show under objectives, not in the median.
    back = [r.seconds for r in recoveries if r.seconds is not None]
    if back:
        note = f"longest {exactly(max(back))}, n = {len(back)}"
        shown.append(
            Figure(
                label="back at work, median",
                value=exactly(statistics.median(back)),
                note=note,
            )
        )
    restarts = [each for ledger in training for each in ledger.restarts]
    from_memory = [each.seconds for each in restarts if each.from_memory]
    if from_memory:
        note = f"of {len(restarts)}, the slowest in {exactly(max(from_memory))}"
        shown.append(
            Figure(
                label="restarts from memory",
                value=str(len(from_memory)),
                note=note,
            )
        )
    documents = summary.get("batch", {}).get("documents")
    if batch and documents:
        # "?" and not 0: what was not counted is not known to be none.
        lost = summary["batch"].get("lost", "?")
        twice = summary["batch"].get("duplicated", "?")
        shown.append(
            Figure(
                label="documents stored once",
                value=f"{documents:,}",
                note=f"{lost} lost, {twice} duplicated",
            )
        )
    serving = summary.get("serving", {})
    if serving.get("requests"):
        note = (
            f"{serving.get('failed', '?')} failed, through {serving.get('evictions', '?')}"
            " evictions"
        )
        shown.append(
            Figure(
                label="online requests",
                value=f"{serving['requests']:,}",
                note=note,
            )
        )
    return tuple(shown)
