"""Writes the sentences of a report: the answer, the twin's outcome and the next steps."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.cost.money import Money
from holdfast.ledger.job_ledger import JobLedger
from holdfast.ledger.timeline import State
from holdfast.report.objectives import Objective, ObjectiveVerdict
from holdfast.report.text import duration, plural
from holdfast.report.totals import add_up
from holdfast.vocabulary.telemetry import KIND_TRAINING


def answer(ledgers: Sequence[JobLedger], summary: Mapping[str, Any]) -> str:
    """Answers in one sentence what the capacity achieved."""
    if not ledgers:
        return "There are no events in this window, so nothing can be concluded."
    training = summary.get("training")
    if training and "bit_exact" in training:
        return _describe_demo(ledgers, training, summary.get("batch", {}))
    total = add_up("", ledgers)
    jobs = plural(total.jobs, "job")
    evictions = plural(total.evictions, "eviction")
    return (
        f"{total.goodput:.0%} of {duration(total.wall_us / 1e6)} machine time moved {jobs} forward,"
        f" through {evictions}."
    )


def pays(money: Money) -> str:
    """Answers whether Spot pays, with the interval, its basis and the churn at which it stops."""
    low, high = money.interval
    # Without any eviction there is no upper bound, and a huge number would look like one.
    spread = f"at least {low:.2f}"
    if math.isfinite(high):
        spread = f"{low:.2f} to {high:.2f}"
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
    """Describes the churn at which Spot stops paying."""
    rival = money.prices.rival[0].value
    if math.isinf(money.flip_per_node_h):
        return f"it stays cheaper than {rival} at any churn"
    limit = _format_rate(money.flip_per_node_h)
    rate = _format_rate(money.per_node_h)
    return f"it stops paying against {rival} above {limit} evictions a node-hour, now {rate}"


def _format_rate(rate: float) -> str:
    """Formats a rate with two digits, or as a whole number from 10 on."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _describe_demo(
    ledgers: Sequence[JobLedger], training: Mapping[str, Any], batch: Mapping[str, Any]
) -> str:
    evictions = plural(int(training.get("evictions", 0)), "eviction")
    cost = plural(int(training.get("lost_steps", 0)), "step")
    delay_s = _measure_delay(ledgers)
    if delay_s is not None:
        cost = f"{cost} and {duration(delay_s)}"
    if training["bit_exact"]:
        outcome = "the trained model is identical to the last bit"
    else:
        outcome = "the trained model is NOT the same"
    text = f"{evictions} cost {cost} of training, and {outcome}"
    if batch:
        text = f"{text}; {_describe_batch(batch)}"
    return f"{text}."


def _describe_batch(summary: Mapping[str, Any]) -> str:
    # _check_part has refused summaries whose counts are no numbers.
    documents = int(summary.get("documents", 0))
    missing = int(summary.get("lost", 0))
    duplicates = int(summary.get("duplicated", 0))
    kills = plural(int(summary.get("kills", 0)), "time")
    if missing == duplicates == 0:
        outcome = f"stored each of its {documents:,} documents exactly once"
    else:
        outcome = f"lost {missing:,} of {documents:,} documents and stored {duplicates:,} twice"
    return f"the batch, killed {kills}, {outcome}"


def _measure_delay(ledgers: Sequence[JobLedger]) -> float | None:
    """Returns the seconds by which an evicted run was longer than its own baseline.

    Returns None if no evicted run has one: other jobs are not comparable.
    """
    seconds = {ledger.run: ledger.seconds for ledger in ledgers if ledger.kind == KIND_TRAINING}
    for job, job_s in seconds.items():
        baseline = job.removesuffix("-evicted") + "-baseline"
        if job.endswith("-evicted") and baseline in seconds:
            return job_s - seconds[baseline]
    return None


def naive_sentence(summary: Mapping[str, Any]) -> str:
    """Describes the effect of the same evictions on the naive twin; empty without one."""
    twin = summary.get("training", {}).get("naive")
    if not twin:
        return ""
    steps = plural(int(twin.get("lost_steps", 0)), "step")
    text = f"Under the same evictions the naive twin did {steps} again"
    false_completions = int(twin.get("false_completions", 0))
    if false_completions:
        times = plural(false_completions, "time")
        text += (
            f" and left {times} with exit code 0 before the last step: a Kubernetes Job calls that"
            " complete"
        )
    return f"{text}."


def next_steps(
    ledgers: Sequence[JobLedger], goals: Sequence[Objective], problems: Mapping[str, int]
) -> tuple[str, ...]:
    """Returns recommended changes, the most important first; empty if there are none."""
    steps: list[str] = []
    for goal in goals:
        if goal.verdict is ObjectiveVerdict.BROKEN:
            steps.append(f"Broken: {goal.goal} ({goal.measured}). Start there.")
    for ledger in sorted(ledgers, key=lambda ledger: -ledger.unused_us):
        if not ledger.run.endswith(("-baseline", "-naive")):
            steps += _advise(ledger)
    if problems:
        lines = plural(sum(problems.values()), "event line")
        steps.append(f"{lines} had problems, which are listed at the end.")
    return tuple(steps)


def _advise(ledger: JobLedger) -> list[str]:
    """Returns a remedy for the largest loss of a job, if it is above 5 % of its time."""
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
    # Only states with a remedy: productive and idle time have none.
    state = max(remedies, key=lambda state: totals[state])
    share = totals[state] / ledger.wall_us if ledger.wall_us else 0.0
    if share <= 0.05:
        return []
    return [f"{ledger.run}: {share:.0%} of its time went to {remedies[state]}."]
