"""Renders a Report as one HTML file without scripts and external addresses.

The page has a light and a dark mode, and can be printed.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from holdfast.ledger.job_ledger import JobLedger
from holdfast.report import charts, tables, teams
from holdfast.report.bounds import MOST_JOBS, MOST_STEPS, Cut, cut
from holdfast.report.capacity import Capacities
from holdfast.report.model import Report
from holdfast.report.sentences import naive_sentence, turn
from holdfast.report.text import duration, percent
from holdfast.report.theme import Plot
from holdfast.report.timeline import timeline
from holdfast.vocabulary.telemetry import KIND_BATCH, KIND_TRAINING

HERE = Path(__file__).parent
MEANING = {
    "productive": "work that was kept",
    "straggling": "kept work, the part beyond 1.5 times the job's usual pace",
    "checkpointing": "the part of a save during which training paused",
    "restoring": "loading a checkpoint",
    "lost": "work that had to be done again, or was under way when the process died",
    "restarting": "stopping, being dead, starting again until the first work",
    "waiting": "no capacity: the pod exists, its node does not",
    "idle": "alive, but no event explains it",
    "degraded": "a place of an elastic gang without a node, while the others work",
}
KINDS = (
    (KIND_TRAINING, "Training", "steps done", "what the time was spent on"),
    (KIND_BATCH, "Batch", "documents stored", "what each worker did"),
)


def render(report: Report) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        # Names of jobs come from event lines, which any pod may print (infra/decisions/0075).
        autoescape=True,
        # Without it a misspelled name would print nothing, and an empty cell reads as a zero.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    return environment.get_template("page.html.j2").render(
        report=report,
        # Safe because it is part of this package; text of events must never be marked so.
        style=Markup((HERE / "style.css").read_text()),
        naive=naive_sentence(report.summary),
        span=window(report.ledgers),
        objectives=tables.objectives(report.objectives),
        money=tables.money(report.money) if report.money else None,
        teams=teams.table(report.teams) if report.teams else None,
        turn=turn(report.money) if report.money else "",
        sections=sections(report),
        figure=figure,
        capacity=_make_capacity_tables(report.capacity),
        steps=report.next_steps[:MOST_STEPS],
        meaning=MEANING,
    )


def sections(report: Report) -> list[dict[str, Any]]:
    """Returns the heading, plots and tables of each kind of job in the report."""
    parts: list[dict[str, Any]] = []
    for kind, title, unit, timeline_title in KINDS:
        ledgers = report.of_kind(kind)
        if not ledgers:
            continue
        worst = _choose_worst(ledgers)
        plots: list[Plot] = []
        if worst.rows:
            progress = charts.progress(
                worst.rows,
                slug=f"{kind}-progress",
                unit=unit,
                title=f"{title}: {unit}",
            )
            states = timeline(
                worst.rows,
                slug=f"{kind}-timeline",
                title=f"{title}: {timeline_title}",
            )
            plots = [progress, states]
        part = {
            "title": title,
            "plots": plots,
            "tables": (tables.jobs(ledgers, title.lower()), tables.evictions(ledgers)),
            "sentence": worst.sentence("jobs drawn", "those that lost the most time"),
        }
        parts.append(part)
    return parts


def _choose_worst(ledgers: Sequence[JobLedger]) -> Cut[JobLedger]:
    """Keeps the jobs that lost the most time, for the plots."""
    # A job that was scheduled and has written nothing yet has rows and no lanes.
    drawable = [ledger for ledger in ledgers if ledger.lanes]
    return cut(drawable, MOST_JOBS, lambda ledger: ledger.unused_us)


def figure(plot: Plot) -> Markup:
    """Returns the plot as SVG with a title and a description, and with ids unique in the page."""
    # Every SVG numbers its clip paths from 0; the first would also clip the second one of a page.
    svg = re.sub(r'(id="|url\(#)(clip|gradient_)', rf"\1{plot.slug}-\2", plot.svg())
    # The picture is one image with a name; a screen reader would also read its nameless parts.
    svg = re.sub(r' (role="graphics-[a-z-]+"|aria-roledescription="[^"]*")', "", svg)
    label = f'role="img" aria-labelledby="{plot.slug}-title {plot.slug}-desc"'
    title = f'<title id="{plot.slug}-title">{escape(plot.title)}</title>'
    desc = f'<desc id="{plot.slug}-desc">{escape(plot.description)}</desc>'

    # A function, because a backslash in the name of a job would be a group in a template.
    def add_names(match: re.Match[str]) -> str:
        return f"<svg {label} {match[1]}>{title}{desc}"

    return Markup(re.sub(r"<svg ([^>]*)>", add_names, svg, count=1))


def _make_capacity_tables(capacity: Capacities) -> list[tables.Table]:
    churn = tables.churn(capacity)
    pod_waits = tables.waits(capacity.waits, "Waiting for a node")
    queue_waits = tables.waits(capacity.queue_waits, "Waiting in a queue")
    candidates = (churn, pod_waits, queue_waits, tables.ratings(capacity))
    return [table for table in candidates if table.rows]


def window(ledgers: Sequence[JobLedger]) -> str:
    """Returns the start of the events and their duration."""
    if not ledgers:
        return "no events"
    begin_t = min(ledger.begin_us for ledger in ledgers) / 1e6
    end_t = max(ledger.end_us for ledger in ledgers) / 1e6
    begin = datetime.fromtimestamp(begin_t, UTC)
    return f"{begin:%Y-%m-%d %H:%M} UTC, {duration(end_t - begin_t)}"
