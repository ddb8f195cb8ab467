"""The sentences of a report. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.cost.money import Money
from holdfast.ledger.job_ledger import JobLedger
from holdfast.ledger.timeline import State
from holdfast.report.objectives import Objective, ObjectiveVerdict
from holdfast.report.text import duration, plural
from holdfast.report.totals import totals_of
from holdfast.vocabulary.telemetry import KIND_TRAINING


def answer(ledgers: Sequence[JobLedger], summary: Mapping[str, Any]) -> str:
    """One sentence that answers the question for which the report was opened."""
    if not ledgers:
        return "There are no events in this window, so nothing can be concluded."
    training = summary.get("training")
    if training and "bit_exact" in training:
        return _demo(ledgers, training, summary.get("batch", {}))
    total = totals_of("", ledgers)
    jobs = plural(total.jobs, "job")
    evictions = plural(total.evictions, "eviction")
    return (
        f"{total.goodput:.0%} of {duration(total.wall_us / 1e6)} machine time moved {jobs} forward,"
        f" through {evictions}."
    )


def pays(money: Money) -> str:
    """Does Spot still pay: with the interval, the count it rests on, and where it would stop."""
    low, high = money.interval
    # With no eviction seen there is no upper bound, and a huge number would pass for one.
    spread = f"{low:.2f} to {high:.2f}" if math.isfinite(high) else f"at least {low:.2f}"
    if money.flex_usd_per_useful_h:
        flex = f" and ${money.flex_usd_per_useful_h:.2f} on flex-start"
    else:
        flex = ""
    verdict = "Spot pays" if money.pays else "Spot does not pay"
    text = (
        f"{verdict} on {money.prices.machine}: ${money.usd_per_useful_h:.2f} per useful hour"
        f" against ${money.on_demand_usd_per_useful_h:.2f} on demand{flex} (90 %: {spread},"
        f" {plural(money.evictions, 'eviction')})"
    )
    return f"{text}; {turn(money)}."


def turn(money: Money) -> str:
    rival = money.prices.rival[0].value
    now = f"now {_figures(money.per_node_h)}"
    if math.isinf(money.flip_per_node_h):
        return f"it stays cheaper than {rival} at any churn"
    return (
        f"it stops paying against {rival} above {_figures(money.flip_per_node_h)} evictions a"
        f" node-hour, {now}"
    )


def _figures(rate: float) -> str:
    """Two of them, or all before the point."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _demo(
    ledgers: Sequence[JobLedger], training: Mapping[str, Any], batch: Mapping[str, Any]
) -> str:
    evictions = plural(int(training.get("evictions", 0)), "eviction")
    steps = plural(int(training.get("lost_steps", 0)), "step")
    extra = _extra_seconds(ledgers)
    cost = f"{steps} and {duration(extra)}" if extra is not None else steps
    if training["bit_exact"]:
        end = "the trained model is identical to the last bit"
    else:
        end = "the trained model is NOT the same"
    text = f"{evictions} cost {cost} of training, and {end}"
    if batch:
        text += "; " + _batch(batch)
    return text + "."


def _batch(summary: Mapping[str, Any]) -> str:
    lost, twice, documents = (
        int(summary.get(key, 0)) for key in ("lost", "duplicated", "documents")
    )
    killed = f"the batch, killed {plural(int(summary.get('kills', 0)), 'time')}, "
    # The claim rests on counts only; _check_part has refused summaries whose counts are no numbers.
    if lost == twice == 0:
        return f"{killed}stored each of its {documents:,} documents exactly once"
    return f"{killed}lost {lost:,} of {documents:,} documents and stored {twice:,} twice"


def _extra_seconds(ledgers: Sequence[JobLedger]) -> float | None:
    """How much later the evicted run was done than the undisturbed one of the same stem."""
    seconds = {x.run: x.seconds for x in ledgers if x.kind == KIND_TRAINING}
    for job, taken in seconds.items():
        baseline = job.removesuffix("-evicted") + "-baseline"
        # Without its own baseline the difference would be between two different jobs.
        if job.endswith("-evicted") and baseline in seconds:
            return taken - seconds[baseline]
    return None


def naive_sentence(summary: Mapping[str, Any]) -> str:
    """What the same evictions did to the trainer of the tutorials."""
    naive = summary.get("training", {}).get("naive")
    if not naive:
        return ""
    text = (
        "Under the same evictions the naive twin did"
        f" {plural(int(naive.get('lost_steps', 0)), 'step')} again"
    )
    false = int(naive.get("false_completions", 0))
    if false:
        text += (
            f" and left {plural(false, 'time')} with exit code 0 before the last step: a Kubernetes"
            " Job calls that complete"
        )
    return text + "."


def next_steps(
    ledgers: Sequence[JobLedger], goals: Sequence[Objective], problems: Mapping[str, int]
) -> tuple[str, ...]:
    """What to change, most important first; empty when there is nothing to do."""
    steps = []
    for goal in goals:
        if goal.verdict is ObjectiveVerdict.BROKEN:
            steps.append(f"Broken: {goal.goal} ({goal.measured}). Start there.")
    for ledger in sorted(ledgers, key=lambda ledger: -ledger.unused_us):
        if not ledger.run.endswith(("-baseline", "-naive")):
            steps += _advice(ledger)
    if problems:
        steps.append(
            f"{plural(sum(problems.values()), 'event line')} had problems, which are listed at the"
            " end."
        )
    return tuple(steps)


def _advice(ledger: JobLedger) -> list[str]:
    """The largest loss of a job, if it is above a twentieth of its time, with what shrinks it."""
    remedies = {
        State.RESTARTING: (
            "starting again: keep images on the node, compile less at start, or choose calmer"
            " capacity"
        ),
        State.LOST: "work done again: save more often",
        State.CHECKPOINTING: "blocking saves: save less often, or write fewer bytes",
        State.WAITING: (
            "waiting for capacity: add zones or machine types, or fall back to flex-start"
        ),
        State.DEGRADED: (
            "an elastic gang's missing nodes: add zones as other pools, or a machine type that"
            " comes back sooner"
        ),
        State.STRAGGLING: "slow steps: look for a throttled or shared machine",
        State.RESTORING: (
            "loading checkpoints: read shards in parallel, from a bucket in the region"
        ),
    }
    totals = ledger.totals_us
    # Productive and idle time have no remedy and must not win.
    state = max(remedies, key=lambda s: totals[s])
    share = totals[state] / ledger.wall_us if ledger.wall_us else 0.0
    if share > 0.05:
        return [f"{ledger.run}: {share:.0%} of its time went to {remedies[state]}."]
    return []
