"""Draws a Report as one HTML file: no address outside it, no script, light, dark and on paper."""

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
        # A misspelled name would print nothing, and an empty cell reads as a zero.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    return environment.get_template("page.html.j2").render(
        report=report,
        # Marked safe, as it is part of this package. Text of events never may be.
        style=Markup((HERE / "style.css").read_text()),
        naive=naive_sentence(report.summary),
        span=window(report.ledgers),
        objectives=tables.objectives(report.objectives),
        money=tables.money(report.money) if report.money else None,
        teams=teams.table(report.teams) if report.teams else None,
        turn=turn(report.money) if report.money else "",
        sections=sections(report),
        figure=figure,
        capacity=_capacity(report.capacity),
        steps=report.next_steps[:MOST_STEPS],
        meaning=MEANING,
    )


def sections(report: Report) -> list[dict[str, Any]]:
    """Heading, plots and tables of each part that shows jobs."""
    found: list[dict[str, Any]] = []
    for kind, title, unit, does in KINDS:
        ledgers = report.of_kind(kind)
        if ledgers:
            worst = _worst(ledgers)
            if worst.rows:
                pictures = [
                    charts.progress(
                        worst.rows,
                        slug=f"{kind}-progress",
                        unit=unit,
                        title=f"{title}: {unit}",
                    ),
                    timeline(worst.rows, slug=f"{kind}-timeline", title=f"{title}: {does}"),
                ]
            else:
                pictures = []
            shown = tables.jobs(ledgers, title.lower()), tables.evictions(ledgers)
            sentence = worst.sentence("jobs drawn", "those that lost the most time")
            found.append(_section(title, pictures, *shown, sentence=sentence))
    return found


def _section(
    title: str, pictures: Sequence[Plot], *shown: tables.Table, sentence: str = ""
) -> dict[str, Any]:
    return {
        "title": title,
        "plots": pictures,
        "tables": shown,
        "sentence": sentence,
    }


def _worst(ledgers: Sequence[JobLedger]) -> Cut[JobLedger]:
    # A job whose pods were scheduled and wrote nothing yet has rows and no lanes.
    return cut(
        [ledger for ledger in ledgers if ledger.lanes], MOST_JOBS, lambda found: found.unused_us
    )


def figure(plot: Plot) -> Markup:
    """The SVG with a name for those who cannot see it. Ids are unique in the page, clip paths
    included.
    """
    # Every SVG numbers its clip paths from 0; the second one of a page would be clipped by the
    # first one's.
    svg = re.sub(r'(id="|url\(#)(clip|gradient_)', rf"\1{plot.slug}-\2", plot.svg())
    # The picture is one image with a name; nameless parts of it would be read out as well.
    svg = re.sub(r' (role="graphics-[a-z-]+"|aria-roledescription="[^"]*")', "", svg)
    label = f'role="img" aria-labelledby="{plot.slug}-title {plot.slug}-desc"'
    title = f'<title id="{plot.slug}-title">{escape(plot.title)}</title>'
    desc = f'<desc id="{plot.slug}-desc">{escape(plot.description)}</desc>'
    # A function: a backslash in the name of a job would be a group in a template.
    return Markup(
        re.sub(
            r"<svg ([^>]*)>", lambda found: f"<svg {label} {found[1]}>{title}{desc}", svg, count=1
        )
    )


def _capacity(capacity: Capacities) -> list[tables.Table]:
    shown = (
        tables.churn(capacity),
        tables.waits(capacity.waits, "Waiting for a node"),
        tables.waits(capacity.queue_waits, "Waiting in a queue"),
    )
    return [table for table in shown if table.rows]


def window(ledgers: Sequence[JobLedger]) -> str:
    if not ledgers:
        return "no events"
    begin = min(x.begin_us for x in ledgers) / 1e6
    end = max(x.end_us for x in ledgers) / 1e6
    when = datetime.fromtimestamp(begin, UTC)
    return f"{when:%Y-%m-%d %H:%M} UTC, {duration(end - begin)}"
