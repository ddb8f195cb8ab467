"""Colours, theme and scales that the plots share. Every colour here is repeated by style.css for
dark mode.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from holdfast.ledger.job_ledger import JobLedger
from holdfast.ledger.timeline import STATES, State

WIDTH = 740
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif"
# In the order in which they are drawn and listed: kept work first. Colours also differ in
# lightness.
COLOR = {
    State.PRODUCTIVE: "#0f766e",
    State.STRAGGLING: "#5eada4",
    State.CHECKPOINTING: "#3b5bdb",
    State.RESTORING: "#91a7f2",
    State.LOST: "#c2410c",
    State.RESTARTING: "#a8afb9",
    State.WAITING: "#e3a62f",
    State.IDLE: "#dcdfe4",
    State.DEGRADED: "#f3d58f",
}
ORDER = list(COLOR)
# A new state that is missing here would be left out of every plot, and the bars would end too
# early.
assert set(ORDER) == set(STATES)
BASELINE = "#6b7280"
NAIVE = "#c2410c"
OURS = ("#0f766e", "#3b5bdb", "#e3a62f", "#5eada4", "#91a7f2", "#a8afb9")
AXIS_COLOR = "#4b5563"
GRID_COLOR = "#e6e8ec"
MARK_COLOR = "#1f2430"


@dataclass(frozen=True, slots=True)
class Plot:
    slug: str
    title: str
    description: str
    """What a screen reader speaks in place of the picture."""
    spec: dict[str, Any]
    note: str = ""

    def svg(self) -> str:
        # Loaded late: it carries a JavaScript engine, which only drawing needs.
        import vl_convert

        # Pinned apart from the package, which holds several Vega-Lite versions: another one moves
        # every mark.
        return vl_convert.vegalite_to_svg(self.spec, vl_version="5.21")


def spec(chart: Any) -> dict[str, Any]:
    """The viewer's font is unknown here, so nothing relies on the measured width of a text."""
    axis = {
        "labelColor": AXIS_COLOR,
        "titleColor": AXIS_COLOR,
        "gridColor": GRID_COLOR,
        "domainColor": GRID_COLOR,
    }
    text = {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 0,
    }
    return (
        chart.configure(
            font=FONT,
            background="transparent",
            aria=False,
            padding=2,
        )
        .configure_view(stroke=None)
        .configure_axis(**axis, **text, tickColor=GRID_COLOR)
        .configure_legend(
            labelColor=AXIS_COLOR,
            orient="top",
            title=None,
            labelFontSize=12,
            symbolType="square",
            symbolBaseFillColor=MARK_COLOR,
            columnPadding=24,
            padding=4,
            offset=8,
        )
        .configure_text(
            color=AXIS_COLOR,
            fontSize=12,
            font=FONT,
        )
        .to_dict()
    )


def rows_axis(names: Sequence[str]) -> alt.Axis:
    """An axis of names that leaves the widest font room."""
    return alt.Axis(
        # Estimated by characters: a label wider than its margin is cut off by the viewer without a
        # sign.
        domain=False,
        ticks=False,
        labelPadding=8,
        minExtent=round(7.4 * max(map(len, names), default=0)) + 12,
    )


def job_color(ledgers: Sequence[JobLedger]) -> alt.Color:
    """A comparison has the colour of its kind, every other job one of its own."""
    names = sorted((x.run for x in ledgers), key=lambda job: job.endswith(("-baseline", "-naive")))
    colors = [
        BASELINE
        if job.endswith("-baseline")
        else NAIVE
        if job.endswith("-naive")
        else OURS[n % len(OURS)]
        for n, job in enumerate(names)
    ]
    shown = alt.Legend(
        columns=3,
        labelLimit=200,
        symbolType="stroke",
        symbolStrokeWidth=3,
    )
    return alt.Color("job:N", scale=alt.Scale(domain=names, range=colors), legend=shown)


def signal(name: str) -> str:
    return "no warning (SIGKILL)" if "KILL" in name.upper() else "with notice (SIGTERM)"


SIGNALS = alt.Scale(
    domain=["with notice (SIGTERM)", "no warning (SIGKILL)"], range=["triangle-down", "cross"]
)


def time_unit(ledgers: Iterable[JobLedger]) -> tuple[str, int]:
    """What to count the time of a run in, and its seconds."""
    longest_s = max((x.seconds for x in ledgers), default=0.0)
    if longest_s > 7200:
        return ("hours", 3600)
    return ("minutes", 60) if longest_s > 600 else ("seconds", 1)


def state_color(present: set[str]) -> alt.Color:
    shown = [s for s in ORDER if s.value in present]
    scale = alt.Scale(domain=[s.value for s in shown], range=[COLOR[s] for s in shown])
    # Two rows at most: one row of all states is wider than the plot.
    return alt.Color("state:N", scale=scale, legend=alt.Legend(columns=4 if len(shown) > 5 else 0))
