"""Colors, theme and scales of all plots; style.css repeats every color for dark mode."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from holdfast.ledger.job_ledger import JobLedger
from holdfast.ledger.timeline import STATES, State

WIDTH = 740
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif"
# The order of drawing and listing: kept work first. Colors also differ in lightness.
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
# A state that is missing here would be absent from every plot, and the bars would end too early.
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
    """The text that a screen reader speaks instead of the picture."""
    spec: dict[str, Any]
    note: str = ""

    def svg(self) -> str:
        # Imported late: it contains a JavaScript engine, which only drawing needs.
        import vl_convert

        # The package holds several Vega-Lite versions, and another one moves every mark.
        return vl_convert.vegalite_to_svg(self.spec, vl_version="5.21")


def spec(chart: Any) -> dict[str, Any]:
    """Returns the chart's specification with the theme.

    The viewer's font is unknown, so nothing relies on the measured width of a text.
    """
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
        .configure_text(color=AXIS_COLOR, fontSize=12, font=FONT)
        .to_dict()
    )


def rows_axis(names: Sequence[str]) -> alt.Axis:
    """Returns an axis of names with room for a wide font."""
    # Estimated by characters: the viewer cuts off a label that is wider than its margin.
    characters = max(map(len, names), default=0)
    return alt.Axis(
        domain=False,
        ticks=False,
        labelPadding=8,
        minExtent=round(7.4 * characters) + 12,
    )


def job_color(ledgers: Sequence[JobLedger]) -> alt.Color:
    """Returns the colors of jobs: fixed ones for baselines and naive twins, listed last."""
    jobs = [ledger.run for ledger in ledgers]
    names = sorted(jobs, key=lambda job: job.endswith(("-baseline", "-naive")))
    colors: list[str] = []
    for number, job in enumerate(names):
        if job.endswith("-baseline"):
            colors.append(BASELINE)
        elif job.endswith("-naive"):
            colors.append(NAIVE)
        else:
            colors.append(OURS[number % len(OURS)])
    legend = alt.Legend(
        columns=3,
        labelLimit=200,
        symbolType="stroke",
        symbolStrokeWidth=3,
    )
    return alt.Color("job:N", scale=alt.Scale(domain=names, range=colors), legend=legend)


def signal(name: str) -> str:
    return "no warning (SIGKILL)" if "KILL" in name.upper() else "with notice (SIGTERM)"


SIGNALS = alt.Scale(
    domain=["with notice (SIGTERM)", "no warning (SIGKILL)"], range=["triangle-down", "cross"]
)


def time_unit(ledgers: Iterable[JobLedger]) -> tuple[str, int]:
    """Returns the unit of the time axis and its length in seconds."""
    longest_s = max((ledger.seconds for ledger in ledgers), default=0.0)
    if longest_s > 7200:
        return "hours", 3600
    if longest_s > 600:
        return "minutes", 60
    return "seconds", 1


def state_color(present: set[str]) -> alt.Color:
    """Returns the colors of the states that a plot contains."""
    names: list[str] = []
    colors: list[str] = []
    for state, color in COLOR.items():
        if state.value in present:
            names.append(state.value)
            colors.append(color)
    scale = alt.Scale(domain=names, range=colors)
    # One row of all states would be wider than the plot.
    legend = alt.Legend(columns=4 if len(names) > 5 else 0)
    return alt.Color("state:N", scale=scale, legend=legend)
