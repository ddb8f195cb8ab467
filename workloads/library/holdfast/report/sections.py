"""The parts of a page that show jobs: plots of the worst, tables and sums of all."""

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from markupsafe import Markup

from holdfast.contract.telemetry import KIND_BATCH, KIND_TRAINING
from holdfast.ledger.job_ledger import JobLedger
from holdfast.report import charts, tables, timeline
from holdfast.report.bounds import worst_jobs
from holdfast.report.model import Report
from holdfast.report.theme import Plot

KINDS = ((KIND_TRAINING, "Training", "steps done"), (KIND_BATCH, "Batch", "documents stored"))
DOES = {KIND_TRAINING: "what the time was spent on", KIND_BATCH: "what each worker did"}


def sections(report: Report) -> list[dict[str, Any]]:
    """Heading, plots and tables of each part that has something to show."""
    parts = [_of_kind(kind, title, unit, found) for kind, title, unit in KINDS if (found := report.of_kind(kind))]
    if report.ledgers:
        parts.append(_of_all(report))
    return parts


def _of_kind(kind: str, title: str, unit: str, found: Sequence[JobLedger]) -> dict[str, Any]:
    # A job whose pods were scheduled and wrote nothing yet has rows and no lanes.
    drawn = worst_jobs([ledger for ledger in found if ledger.lanes])
    plots = (
        [
            charts.progress(drawn.rows, slug=f"{kind}-progress", unit=unit, title=f"{title}: {unit}"),
            timeline.timeline(drawn.rows, slug=f"{kind}-timeline", title=f"{title}: {DOES[kind]}"),
        ]
        if drawn.rows
        else []
    )
    return {
        "title": title,
        "sentence": drawn.sentence("jobs drawn", "those that lost the most time"),
        "plots": [(plot, figure(plot)) for plot in plots],
        "jobs": tables.job_rows(found),
        "evictions": tables.evictions(found),
    }


def _of_all(report: Report) -> dict[str, Any]:
    # By identity: a training and a batch job may share a name, and equal ledgers are not one job.
    shown = {id(x) for kind, _, _ in KINDS for x in worst_jobs(report.of_kind(kind)).rows}
    drawn = [x for x in report.ledgers if id(x) in shown]
    rest = [x for x in report.ledgers if id(x) not in shown]
    both = [charts.where_time_went(drawn, rest), charts.recoveries(drawn)]
    return {
        "title": "All jobs",
        "sentence": f"Back at work: of the {len(drawn)} jobs drawn above." if rest else "",
        "plots": [(plot, figure(plot)) for plot in both if plot],
        "jobs": [],
    }


def figure(plot: Plot) -> Markup:
    """The SVG with a name for those who cannot see it. Ids are unique in the page, clip paths included."""
    # Every SVG numbers its clip paths from 0; the second one of a page would be clipped by the first one's.
    svg = re.sub(r'(id="|url\(#)(clip|gradient_)', rf"\1{plot.slug}-\2", plot.svg())
    # The picture is one image with a name; nameless parts of it would be read out as well.
    svg = re.sub(r' (role="graphics-[a-z-]+"|aria-roledescription="[^"]*")', "", svg)
    label = f'role="img" aria-labelledby="{plot.slug}-title {plot.slug}-desc"'
    title = f'<title id="{plot.slug}-title">{escape(plot.title)}</title>'
    desc = f'<desc id="{plot.slug}-desc">{escape(plot.description)}</desc>'
    # A function: a backslash in the name of a job would be a group in a template.
    return Markup(re.sub(r"<svg ([^>]*)>", lambda found: f"<svg {label} {found[1]}>{title}{desc}", svg, count=1))
