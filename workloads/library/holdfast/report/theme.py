"""Colours, theme and scales that the plots share, and what an eviction looks like in them.

Every colour here is repeated by style.css for dark mode.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from holdfast.ledger.account import Recovery
from holdfast.ledger.job_ledger import JobLedger
from holdfast.ledger.timeline import STATES, State
from holdfast.report.bounds import MOST_MARKS, spread_each

WIDTH = 740
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif"
# Colour -> its name in style.css (light here, dark there). State colours also differ in lightness.
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
OURS, BASELINE, NAIVE = "#0f766e", "#6b7280", "#c2410c"
AXIS_COLOR, GRID_COLOR, MARK_COLOR = "#4b5563", "#e6e8ec", "#1f2430"
# Drawn and listed in this order: kept work first.
ORDER = [
    State.PRODUCTIVE,
    State.STRAGGLING,
    State.CHECKPOINTING,
    State.RESTORING,
    State.LOST,
    State.RESTARTING,
    State.WAITING,
    State.IDLE,
    State.DEGRADED,
]
# A new state that is missing here would be left out of every plot, and the bars would end too early.
assert set(ORDER) == set(STATES)


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

        # Pinned apart from the package, which holds several Vega-Lite versions: another one moves every mark.
        return vl_convert.vegalite_to_svg(self.spec, vl_version="5.21")


def theme(chart: Any) -> dict[str, Any]:
    """The viewer's font is unknown here, so nothing relies on the measured width of a text."""
    axis = {"labelColor": AXIS_COLOR, "titleColor": AXIS_COLOR, "gridColor": GRID_COLOR, "domainColor": GRID_COLOR}
    text = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": 0}
    return (
        chart.configure(font=FONT, background="transparent", aria=False, padding=2)
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
    """An axis of names that leaves the widest font room."""
    return alt.Axis(
        # Estimated by characters: a label wider than its margin is cut off by the viewer without a sign.
        domain=False,
        ticks=False,
        labelPadding=8,
        minExtent=round(7.4 * max(map(len, names), default=0)) + 12,
    )


def role_color(job: str) -> str:
    return BASELINE if job.endswith("-baseline") else NAIVE if job.endswith("-naive") else OURS


def jobs_scale(ledgers: Sequence[JobLedger]) -> alt.Scale:
    return alt.Scale(domain=[x.run for x in ledgers], range=[role_color(x.run) for x in ledgers])


def signal(name: str) -> str:
    return "no warning (SIGKILL)" if "KILL" in name.upper() else "with notice (SIGTERM)"


SIGNALS = alt.Scale(domain=["with notice (SIGTERM)", "no warning (SIGKILL)"], range=["triangle-down", "cross"])


def time_unit(ledgers: Iterable[JobLedger]) -> tuple[str, int]:
    """What to count the time of a run in, and its seconds."""
    longest_s = max((x.seconds for x in ledgers), default=0.0)
    return ("hours", 3600) if longest_s > 7200 else ("minutes", 60) if longest_s > 600 else ("seconds", 1)


def time_axis(bucket_s: int) -> alt.Axis:
    form = "%H:%M:%S" if bucket_s < 60 else "%H:%M" if bucket_s < 1800 else "%b %d %H:%M"
    return alt.Axis(format=form, grid=False, tickCount=5, labelOverlap=True, labelSeparation=24, labelBound=True)


Marked = tuple[JobLedger, Recovery]


def every_eviction(ledgers: Iterable[JobLedger]) -> list[Marked]:
    return [(x, r) for x in ledgers for r in x.recoveries]


def marked(pairs: Iterable[Marked]) -> list[Marked]:
    """The evictions that a plot over time has room for: of each job and signal so many, spread over its time."""
    return spread_each(pairs, MOST_MARKS, lambda p: (p[0].run, signal(p[1].signal)), lambda p: p[1].t_us)


def count_of(shown: int, whole: int, what: str) -> str:
    return f"{shown:,} of {whole:,} {what}" if shown < whole else what


def evict_rows(pairs: Iterable[Marked], unit_s: float = 1) -> list[dict[str, Any]]:
    return [
        {
            "job": x.run,
            "t": round((r.t_us - x.begin_us) / 1e6 / unit_s, 6),
            "signal": signal(r.signal),
            "done": _done_at(x, r.t_us),
            "back": r.seconds,
        }
        for x, r in pairs
    ]


def _done_at(ledger: JobLedger, t_us: int) -> float:
    """Progress at a moment, as the chart draws it: the newest point before it."""
    points = ledger.account.progress
    # There may be thousands of points and hundreds of evictions: a search for each, not a scan.
    before = bisect_right(points, t_us, key=lambda point: point[0])
    return points[before - 1][1] if before else 0.0


def state_color(present: set[str]) -> alt.Color:
    shown = [s for s in ORDER if s.value in present]
    scale = alt.Scale(domain=[s.value for s in shown], range=[COLOR[s] for s in shown])
    # Two rows at most: one row of all states is wider than the plot.
    return alt.Color("state:N", scale=scale, legend=alt.Legend(columns=4 if len(shown) > 5 else 0))
