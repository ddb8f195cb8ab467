"""Draws a Report as one HTML file: no address outside it, no script, light, dark and on paper."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from holdfast.contract.telemetry import WAIT_BANDS_S
from holdfast.ledger.job_ledger import JobLedger
from holdfast.report import charts, goodput_chart, tables
from holdfast.report.bounds import MOST_CLUSTERS, MOST_STEPS, cut
from holdfast.report.capacity import Capacities
from holdfast.report.embedded import embedded
from holdfast.report.goodput import moment
from holdfast.report.model import Report
from holdfast.report.sections import figure, sections
from holdfast.report.sentences import naive_sentence, turn
from holdfast.report.theme import ORDER, Plot
from holdfast.report.times import duration

HERE = Path(__file__).parent
MEANING = {
    "productive": "work that was kept",
    "straggling": "kept work, the part beyond 1.5 times the job's usual pace",
    "checkpointing": "the part of a save for which work stood still",
    "restoring": "loading a checkpoint",
    "lost": "work that had to be done again, or was under way when the process died",
    "restarting": "stopping, being dead, starting again until the first work",
    "waiting": "no capacity: the pod exists, its node does not",
    "idle": "alive, but no event explains it",
    "degraded": "a place of an elastic gang without a node, while the others work",
}


def render(report: Report) -> str:
    with_data = [capacity for capacity in report.capacities if capacity.has_data]
    shown = cut(with_data, MOST_CLUSTERS, lambda capacity: sum(count for _, _, count in capacity.losses))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        # Names of jobs come from event lines, which any pod may print (infra/decisions/0075).
        autoescape=True,
        # A misspelled name would print nothing, and an empty cell reads as a zero.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["seconds"] = _seconds
    environment.filters["percent"] = _percent
    environment.filters["waited"] = _waited
    return environment.get_template("page.html.j2").render(
        report=report,
        # Marked safe, as it is a file of ours. Text of events never may be.
        style=Markup((HERE / "style.css").read_text()),
        sections=sections(report),
        states=ORDER,
        meaning=MEANING,
        turn=turn(report.money) if report.money else "",
        clusters=[_cluster(capacity, number) for number, capacity in enumerate(shown.rows, 1)],
        clusters_shown=shown.sentence("clusters", "those with the most preemptions"),
        saves=tables.saves([saves for capacity in report.capacities for saves in capacity.saves]),
        steps=report.next_steps[:MOST_STEPS],
        goodput=_goodput(report),
        moment=moment,
        naive=naive_sentence(report.summary),
        served=tables.served_rows(report.summary.get("serving") or {}),
        span=report.span or window(report.ledgers),
        duration=duration,
        data=Markup(embedded(report)),
    )


def _seconds(us: int) -> str:
    return f"{us / 1e6:,.1f}"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _waited(seconds: float | None, rounded_up: bool = False) -> str:
    if seconds is None:
        return "unknown"
    # Beyond the last band no upper end is known.
    if math.isinf(seconds):
        return f"over {WAIT_BANDS_S[-1]:,}"
    return f"{'up to ' if rounded_up else ''}{seconds:,.0f}"


def _goodput(report: Report) -> tuple[Plot, Markup] | None:
    if not report.goodput:
        return None
    plot = goodput_chart.stack(report.goodput)
    return plot, figure(plot)


def _cluster(capacity: Capacities, number: int) -> dict[str, Any]:
    """What the template shows of one cluster; its number keeps ids of the page apart."""
    hours, losses = tables.losses(capacity.losses) if capacity.losses else (1, [])
    plot = charts.losses(losses, slug=f"losses-{number}", hours=hours) if losses else None
    waits, queued, shares = tables.waits(capacity), tables.queue_waits(capacity), tables.shares(capacity)
    return {
        "id": f"capacity-{number}",
        "title": f"Capacity of {capacity.cluster}" if capacity.cluster else "Capacity",
        "losses": (plot, figure(plot)) if plot else None,
        "loss_rows": losses,
        "churn": tables.churn_rows(capacity),
        "waits": waits,
        "waits_shown": waits.sentence("kinds", "those with the most waits"),
        "queued": queued,
        "queued_shown": queued.sentence("kinds", "those with the longest waits"),
        "shares": shares,
        "shares_shown": shares.sentence("jobs", "those with the least useful time"),
    }


def window(ledgers: Sequence[JobLedger]) -> str:
    if not ledgers:
        return "no events"
    begin, end = min(x.begin_us for x in ledgers) / 1e6, max(x.end_us for x in ledgers) / 1e6
    when = datetime.fromtimestamp(begin, UTC)
    return f"{when:%Y-%m-%d %H:%M} UTC, {duration(end - begin)}"
