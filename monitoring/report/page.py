"""Draws a Report as one HTML file: no address outside it, no script, light, dark and on paper.

Called by cli.py.
"""

import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from infra.contract.telemetry import KIND_BATCH, KIND_TRAINING
from monitoring.churn import Exposure
from monitoring.exporter.waits import WAIT_BANDS_S
from monitoring.ledger import Ledger
from monitoring.report import charts, goodput_chart, timeline
from monitoring.report.capacity import Capacities
from monitoring.report.goodput import moment
from monitoring.report.ink import ORDER, Plot
from monitoring.report.model import Report
from monitoring.report.times import duration
from monitoring.report.words import naive_sentence, turn

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
}


def render(report: Report) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["seconds"] = _seconds
    environment.filters["percent"] = _percent
    environment.filters["waited"] = _waited
    return environment.get_template("page.html.j2").render(
        report=report,
        style=Markup((HERE / "style.css").read_text()),
        sections=sections(report),
        states=ORDER,
        meaning=MEANING,
        turn=turn(report.money) if report.money else "",
        clusters=[_cluster(told, number) for number, told in enumerate(report.capacities, 1) if told.told],
        saves=[saves for told in report.capacities for saves in told.saves],
        goodput=_goodput(report),
        moment=moment,
        naive=naive_sentence(report.summary),
        span=report.span or window(report.ledgers),
        duration=duration,
        data=Markup(embedded(report.as_json())),
    )


def _seconds(us: int) -> str:
    return f"{us / 1e6:,.1f}"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _waited(seconds: float | None, rounded_up: bool = False) -> str:
    if seconds is None:
        return "unknown"
    if math.isinf(seconds):
        return f"over {WAIT_BANDS_S[-1]:,}"
    return f"{'up to ' if rounded_up else ''}{seconds:,.0f}"


def _goodput(report: Report) -> tuple[Plot, Markup] | None:
    if not report.goodput:
        return None
    plot = goodput_chart.stack(report.goodput)
    return plot, figure(plot)


def _cluster(told: Capacities, number: int) -> dict[str, Any]:
    """What the template shows of one cluster; its number keeps ids of the page apart."""
    plot = charts.losses(told.losses, slug=f"losses-{number}") if told.losses else None
    return {
        "id": f"capacity-{number}",
        "title": f"Capacity of {told.cluster}" if told.cluster else "Capacity",
        "told": told,
        "losses": (plot, figure(plot)) if plot else None,
        "churn": churn_rows(told),
    }


def churn_rows(capacity: Capacities) -> list[tuple[str, str, Exposure]]:
    """By pool first, then by the age of the node."""
    groups = [(g.pool or "no pool", f"{g.machine_type} {g.zone}".strip(), exposure) for g, exposure in capacity.churn]
    bands = [
        ("all", f"{low:g} to {high:g} h old" if math.isfinite(high) else f"over {low:g} h old", exposure)
        for low, high, exposure in capacity.ages
        if exposure.hours
    ]
    return groups + bands


def sections(report: Report) -> list[dict[str, Any]]:
    """Heading, plots and table of each part that has something to show."""
    training, batch = report.of_kind(KIND_TRAINING), report.of_kind(KIND_BATCH)
    parts: list[dict[str, Any]] = []
    if training:
        plots = [
            charts.progress(training, slug="training-progress", unit="steps done", title="Training: steps done"),
            timeline.timeline(training, slug="training-timeline", title="Training: what the time was spent on"),
        ]
        parts.append(_section("Training", training, plots))
    if batch:
        plots = [
            charts.progress(batch, slug="batch-progress", unit="documents stored", title="Batch: documents stored"),
            timeline.timeline(batch, slug="batch-timeline", title="Batch: what each worker did"),
        ]
        parts.append(_section("Batch", batch, plots))
    if report.ledgers:
        both = [charts.where_time_went(report.ledgers), charts.recoveries(report.ledgers)]
        parts.append({"title": "All jobs", "ledgers": (), "plots": [(plot, figure(plot)) for plot in both if plot]})
    return parts


def _section(title: str, ledgers: Sequence[Ledger], plots: Sequence[Plot]) -> dict[str, Any]:
    return {"title": title, "ledgers": ledgers, "plots": [(plot, figure(plot)) for plot in plots]}


def figure(plot: Plot) -> Markup:
    """The SVG with a name for those who cannot see it. Ids are unique in the page, clip paths included."""
    svg = re.sub(r'(id="|url\(#)(clip|gradient_)', rf"\1{plot.slug}-\2", plot.svg())
    # The picture is one image with a name; nameless parts of it would be read out as well.
    svg = re.sub(r' (role="graphics-[a-z-]+"|aria-roledescription="[^"]*")', "", svg)
    label = f'role="img" aria-labelledby="{plot.slug}-title {plot.slug}-desc"'
    title = f'<title id="{plot.slug}-title">{escape(plot.title)}</title>'
    desc = f'<desc id="{plot.slug}-desc">{escape(plot.description)}</desc>'
    return Markup(re.sub(r"<svg ([^>]*)>", rf"<svg {label} \1>{title}{desc}", svg, count=1))


def window(ledgers: Sequence[Ledger]) -> str:
    if not ledgers:
        return "no events"
    begin, end = min(x.begin_us for x in ledgers) / 1e6, max(x.end_us for x in ledgers) / 1e6
    when = datetime.fromtimestamp(begin, UTC)
    return f"{when:%Y-%m-%d %H:%M} UTC, {duration(end - begin)}"


def embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data, sort_keys=True).replace("<", "\\u003c")
