"""The plots, as Vega-Lite specifications and as SVG that follows the page's colours.

Called by page.py. A specification is plain JSON (the tests compare it); the SVG stands alone, and every
colour of `INK` is repeated by style.css for dark mode. Each plot has a table behind it in the page.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from infra.contract.telemetry import KIND_BATCH
from monitoring.ledger import Ledger
from monitoring.spans import STATES, State

WIDTH = 740
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif"
# Colour -> its name in style.css (light here, dark there). State colours also differ in lightness.
INK = {
    State.PRODUCTIVE: "#0f766e",
    State.STRAGGLING: "#5eada4",
    State.CHECKPOINTING: "#3b5bdb",
    State.RESTORING: "#91a7f2",
    State.LOST: "#c2410c",
    State.RESTARTING: "#a8afb9",
    State.WAITING: "#e3a62f",
    State.IDLE: "#dcdfe4",
}
OURS, BASELINE, NAIVE = "#0f766e", "#6b7280", "#c2410c"
AXIS_INK, GRID_INK, MARK_INK = "#4b5563", "#e6e8ec", "#1f2430"
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
]
assert set(ORDER) == set(STATES)


@dataclass(frozen=True, slots=True)
class Plot:
    slug: str
    title: str
    description: str
    """Read by screen readers in place of the picture."""
    spec: dict[str, Any]
    note: str = ""

    def svg(self) -> str:
        import vl_convert

        return vl_convert.vegalite_to_svg(self.spec, vl_version="5.21")


def _theme(chart: Any) -> dict[str, Any]:
    """The viewer's font is unknown here, so nothing relies on the measured width of a text."""
    axis = {"labelColor": AXIS_INK, "titleColor": AXIS_INK, "gridColor": GRID_INK, "domainColor": GRID_INK}
    text = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": 0}
    return (
        chart.configure(font=FONT, background="transparent", aria=False, padding=2)
        .configure_view(stroke=None)
        .configure_axis(**axis, **text, tickColor=GRID_INK)
        .configure_legend(
            labelColor=AXIS_INK,
            orient="top",
            title=None,
            labelFontSize=12,
            symbolType="square",
            symbolBaseFillColor=MARK_INK,
            columnPadding=24,
            padding=4,
            offset=8,
        )
        .configure_text(color=AXIS_INK, fontSize=12, font=FONT)
        .to_dict()
    )


def _rows_axis(names: Sequence[str]) -> alt.Axis:
    """An axis of names that leaves the widest font room."""
    return alt.Axis(
        domain=False, ticks=False, labelPadding=8, minExtent=round(7.4 * max(map(len, names), default=0)) + 12
    )


def role_ink(job: str) -> str:
    return BASELINE if job.endswith("-baseline") else NAIVE if job.endswith("-naive") else OURS


def _jobs_scale(ledgers: Sequence[Ledger]) -> alt.Scale:
    return alt.Scale(domain=[x.job for x in ledgers], range=[role_ink(x.job) for x in ledgers])


def _signal(name: str) -> str:
    return "no warning (SIGKILL)" if "KILL" in name.upper() else "with notice (SIGTERM)"


_SIGNALS = alt.Scale(domain=["with notice (SIGTERM)", "no warning (SIGKILL)"], range=["triangle-down", "cross"])


def _evict_rows(ledgers: Iterable[Ledger]) -> list[dict[str, Any]]:
    return [
        {
            "job": x.job,
            "t": round((r.t_us - x.begin_us) / 1e6, 3),
            "signal": _signal(r.signal),
            "done": _done_at(x, r.t_us),
            "back": r.seconds,
        }
        for x in ledgers
        for r in x.recoveries
    ]


def _done_at(ledger: Ledger, t_us: int) -> float:
    """Progress at a moment, as the chart draws it: the newest point before it."""
    before = [(t, done) for t, done, _ in ledger.account.progress if t <= t_us]
    return max(before)[1] if before else 0.0


def progress(ledgers: Sequence[Ledger], *, slug: str, unit: str, title: str) -> Plot:
    """Work done against time. A life is one line; an eviction that loses work is a fall."""
    rows: list[dict[str, Any]] = [
        {"job": x.job, "t": round((t - x.begin_us) / 1e6, 3), "done": done, "life": life}
        for x in ledgers
        for t, done, life in x.account.progress
    ]
    top = max((row["done"] for row in rows), default=1)
    x_axis = alt.X("t:Q", title="seconds since the run began", axis=alt.Axis(grid=False, tickCount=10))
    y_axis = alt.Y("done:Q", title=unit, scale=alt.Scale(domain=[0, top * 1.2], nice=False))
    color = alt.Color("job:N", scale=_jobs_scale(ledgers), legend=None)
    base = alt.Chart(alt.Data(values=_thin(rows))).encode(x=x_axis, y=y_axis, color=color)
    falls = base.mark_line(strokeWidth=1.2, strokeDash=[2, 3], opacity=0.7).encode(detail="job:N")
    lines = base.mark_line(strokeWidth=2.4, strokeCap="round", strokeJoin="round").encode(detail="life:N")
    marks = (
        alt.Chart(alt.Data(values=_evict_rows(ledgers)))
        .mark_point(filled=True, size=80, opacity=1, stroke="#ffffff", strokeWidth=0.8)
        .encode(x="t:Q", y="done:Q", shape=alt.Shape("signal:N", scale=_SIGNALS), color=color)
    )
    names = (
        alt.Chart(alt.Data(values=[_last(x) for x in ledgers if x.account.progress]))
        .mark_text(align="right", baseline="bottom", dx=-8, dy=-4, fontWeight="bold")
        .encode(x="t:Q", y="done:Q", text="job:N", color=color)
    )
    chart = (falls + lines + marks + names).properties(width=WIDTH + 60, height=250)
    described = f"{unit.capitalize()} against time. {_ends(ledgers)}."
    return Plot(slug, title, described, _theme(chart), "Dotted: nothing is running")


def _last(ledger: Ledger) -> dict[str, Any]:
    t, done, _ = ledger.account.progress[-1]
    # Runs that end at the same step have their names one above the other.
    above = 0.07 * done if ledger.job.endswith("-naive") else 0.0
    return {"job": ledger.job, "t": round((t - ledger.begin_us) / 1e6, 3), "done": done + above}


def _ends(ledgers: Sequence[Ledger]) -> str:
    return "; ".join(
        f"{x.job} reached {x.account.progress[-1][1]:.0f} after {x.seconds:.0f} s"
        for x in ledgers
        if x.account.progress
    )


def _thin(rows: list[dict[str, Any]], most: int = 6000) -> list[dict[str, Any]]:
    """A plot of 720 pixels shows no more points than this; the table behind it keeps the totals."""
    return rows[:: max(1, len(rows) // most)]


def timeline(ledgers: Sequence[Ledger], *, slug: str, title: str) -> Plot:
    """What each lane did, second by second; evictions above a bar, commits below it."""
    rows = [row for x in ledgers for row in _bars(x)]
    lanes = [_lane(x, n) for x in ledgers for n in range(x.lanes)]
    y = alt.Y("lane:N", sort=lanes, title=None, scale=alt.Scale(paddingInner=0.4), axis=_rows_axis(lanes))
    x = alt.X("from:Q", title="seconds since the run began", axis=alt.Axis(grid=False, tickCount=10))
    colored = _state_color({row["state"] for row in rows})
    step = 44 if len(lanes) < 6 else 32
    half = round(step * 0.3)
    bars = alt.Chart(alt.Data(values=rows)).mark_bar().encode(x=x, x2="to:Q", y=y, color=colored)
    marks = (
        alt.Chart(alt.Data(values=[e | {"lane": lane} for e, lane in _evict_lanes(ledgers)]))
        .mark_point(filled=True, size=64, opacity=1, color=MARK_INK, stroke="#ffffff", strokeWidth=0.8, yOffset=-half)
        .encode(x="t:Q", y=y, shape=alt.Shape("signal:N", scale=_SIGNALS))
    )
    commits = (
        alt.Chart(alt.Data(values=[row for x in ledgers for row in _commit_rows(x)]))
        .mark_tick(thickness=1.5, size=6, color=INK[State.CHECKPOINTING], orient="vertical", yOffset=half + 4)
        .encode(x="t:Q", y=y)
    )
    chart = (bars + marks + commits).resolve_legend(shape="independent").properties(width=WIDTH, height=alt.Step(step))
    described = "Timeline. " + "; ".join(_account_in_words(x) for x in ledgers) + "."
    note = "Evictions above a bar" + (
        ", committed checkpoints below it" if any(x.account.commits_us for x in ledgers) else ""
    )
    return Plot(slug, title, described, _theme(chart), note)


def _bars(ledger: Ledger) -> Iterable[dict[str, Any]]:
    """Spans wide enough to be seen; a narrower one is drawn as part of the one before it. The table keeps all."""
    narrow_us = (ledger.end_us - ledger.begin_us) // WIDTH
    drawn: list[list[Any]] = []
    for begin, end, state, lane in ledger.spans:
        joins = bool(drawn) and drawn[-1][3] == lane and (end - begin < narrow_us or drawn[-1][2] is state)
        if joins:
            drawn[-1][1] = end
        else:
            drawn.append([begin, end, state, lane])
    for begin, end, state, lane in drawn:
        low, high = ((t - ledger.begin_us) / 1e6 for t in (begin, end))
        yield {"lane": _lane(ledger, lane), "from": round(low, 3), "to": round(high, 3), "state": state.value}


def _commit_rows(ledger: Ledger) -> Iterable[dict[str, Any]]:
    for t_us in ledger.account.commits_us:
        yield {"lane": _lane(ledger, 0), "t": round((t_us - ledger.begin_us) / 1e6, 3)}


def _lane(ledger: Ledger, lane: int) -> str:
    return ledger.job if ledger.lanes == 1 else f"{ledger.job} worker {lane + 1}"


def _evict_lanes(ledgers: Sequence[Ledger]) -> Iterable[tuple[dict[str, Any], str]]:
    """An eviction stands on the lane where work was lost or a restart began at that moment."""
    for x in ledgers:
        for row, recovery in zip(_evict_rows([x]), x.recoveries, strict=True):
            dead = (State.LOST, State.RESTARTING)
            gone = [s for s in x.spans if s.state in dead and s.begin_us - 2_000_000 <= recovery.t_us <= s.end_us]
            nearest = min(gone, key=lambda s: abs(s.end_us - recovery.t_us), default=None)
            yield row, _lane(x, nearest.lane if nearest else 0)


def _state_color(present: set[str]) -> alt.Color:
    shown = [s for s in ORDER if s.value in present]
    scale = alt.Scale(domain=[s.value for s in shown], range=[INK[s] for s in shown])
    # Two rows at most: one row of all states is wider than the plot.
    return alt.Color("state:N", scale=scale, legend=alt.Legend(columns=4 if len(shown) > 5 else 0))


def where_time_went(ledgers: Sequence[Ledger]) -> Plot:
    rows: list[dict[str, Any]] = [
        {"job": x.job, "state": s.value, "share": us / x.wall_us, "order": ORDER.index(s)}
        for x in ledgers
        for s, us in x.totals_us().items()
        if us and x.wall_us
    ]
    jobs = [x.job for x in ledgers]
    y = alt.Y("job:N", sort=jobs, title=None, axis=_rows_axis(jobs), scale=alt.Scale(paddingInner=0.3))
    bars = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar()
        .encode(
            x=alt.X(
                "share:Q",
                title="share of wall time",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format="%", grid=False),
            ),
            y=y,
            color=_state_color({r["state"] for r in rows}),
            order="order:Q",
        )
    )
    labels = (
        alt.Chart(alt.Data(values=[{"job": x.job, "label": f"{x.goodput:.0%} useful"} for x in ledgers]))
        .mark_text(align="left", dx=6, color="#ffffff", fontWeight="bold")
        .encode(x=alt.datum(0), y=y, text="label:N")
    )
    chart = (bars + labels).properties(width=WIDTH, height=alt.Step(34))
    described = ", ".join(f"{x.job} {x.goodput:.0%}" for x in ledgers)
    return Plot("where-time-went", "Where the time went", f"Share of useful time: {described}.", _theme(chart))


def recoveries(ledgers: Sequence[Ledger]) -> Plot | None:
    """Seconds from an eviction until work went on; one mark for each."""
    rows = [row for row in _evict_rows(ledgers) if row["back"] is not None]
    if not rows:
        return None
    jobs = [x.job for x in ledgers if any(r["job"] == x.job for r in rows)]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_point(filled=True, size=90, opacity=0.85)
        .encode(
            x=alt.X("back:Q", title="seconds from the eviction until work went on", axis=alt.Axis(tickCount=8)),
            y=alt.Y("job:N", sort=jobs, title=None, axis=_rows_axis(jobs)),
            shape=alt.Shape("signal:N", scale=_SIGNALS),
            color=alt.Color("job:N", scale=_jobs_scale(ledgers), legend=None),
        )
        .properties(width=WIDTH, height=alt.Step(44))
    )
    slowest = max(row["back"] for row in rows)
    return Plot(
        "recovery", "Back at work", f"{len(rows)} recoveries, the slowest took {slowest:.1f} seconds.", _theme(chart)
    )


def _account_in_words(ledger: Ledger) -> str:
    what = (
        f"{len(ledger.recoveries)} evictions"
        if ledger.kind == KIND_BATCH
        else f"{len(ledger.recoveries)} evictions and {ledger.account.lost} steps done again"
    )
    return f"{ledger.job}: {ledger.seconds:.0f} s, {ledger.goodput:.0%} useful, {what}"
