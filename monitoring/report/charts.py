"""The plots, as Vega-Lite specifications and as SVG that follows the page's colours.

Called by page.py. A specification is plain JSON (the tests compare it); the SVG stands alone. Each plot has a table
behind it in the page.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import altair as alt

from monitoring.ledger import Ledger
from monitoring.report.ink import (
    INK,
    ORDER,
    SIGNALS,
    WIDTH,
    Plot,
    evict_rows,
    jobs_scale,
    rows_axis,
    state_color,
    theme,
    time_axis,
    time_unit,
)
from monitoring.spans import State

HOUR_MS = 3_600_000
GAP_MS = HOUR_MS // 12  # between two bars
LEAST_MS = 12 * HOUR_MS


def progress(ledgers: Sequence[Ledger], *, slug: str, unit: str, title: str) -> Plot:
    """Work done against time. A life is one line; an eviction that loses work is a fall."""
    name, unit_s = time_unit(ledgers)
    rows: list[dict[str, Any]] = [
        {"job": x.job, "t": round((t - x.begin_us) / 1e6 / unit_s, 6), "done": done, "life": life}
        for x in ledgers
        for t, done, life in x.account.progress
    ]
    top = max((row["done"] for row in rows), default=1)
    x_axis = alt.X("t:Q", title=f"{name} since the run began", axis=alt.Axis(grid=False, tickCount=10))
    scale = alt.Scale(domain=[0, top * 1.2], nice=False)
    y_axis = alt.Y("done:Q", title=unit, scale=scale, axis=alt.Axis(format="~s"))
    color = alt.Color("job:N", scale=jobs_scale(ledgers), legend=None)
    base = alt.Chart(alt.Data(values=_thin(rows))).encode(x=x_axis, y=y_axis, color=color)
    falls = base.mark_line(strokeWidth=1.2, strokeDash=[2, 3], opacity=0.7).encode(detail="job:N")
    lines = base.mark_line(strokeWidth=2.4, strokeCap="round", strokeJoin="round").encode(detail="life:N")
    marks = (
        alt.Chart(alt.Data(values=evict_rows(ledgers, unit_s)))
        .mark_point(filled=True, size=80, opacity=1, stroke="#ffffff", strokeWidth=0.8)
        .encode(x="t:Q", y="done:Q", shape=alt.Shape("signal:N", scale=SIGNALS), color=color)
    )
    names = (
        alt.Chart(alt.Data(values=[_last(x, unit_s) for x in ledgers if x.account.progress]))
        .mark_text(align="right", baseline="bottom", dx=-8, dy=-4, fontWeight="bold")
        .encode(x="t:Q", y="done:Q", text="job:N", color=color)
    )
    chart = (falls + lines + marks + names).properties(width=WIDTH + 60, height=250)
    described = f"{unit.capitalize()} against time. {_ends(ledgers)}."
    return Plot(slug, title, described, theme(chart), "Dotted: nothing is running")


def _last(ledger: Ledger, unit_s: float) -> dict[str, Any]:
    t, done, _ = ledger.account.progress[-1]
    # Runs that end at the same step have their names one above the other.
    above = 0.07 * done if ledger.job.endswith("-naive") else 0.0
    return {"job": ledger.job, "t": round((t - ledger.begin_us) / 1e6 / unit_s, 6), "done": done + above}


def _ends(ledgers: Sequence[Ledger]) -> str:
    return "; ".join(
        f"{x.job} reached {x.account.progress[-1][1]:.0f} after {x.seconds:.0f} s"
        for x in ledgers
        if x.account.progress
    )


def _thin(rows: list[dict[str, Any]], most: int = 6000) -> list[dict[str, Any]]:
    """A plot of 720 pixels shows no more points than this; the table behind it keeps the totals."""
    return rows[:: max(1, len(rows) // most)]


def where_time_went(ledgers: Sequence[Ledger]) -> Plot:
    rows: list[dict[str, Any]] = [
        {"job": x.job, "state": s.value, "share": us / x.wall_us, "order": ORDER.index(s)}
        for x in ledgers
        for s, us in x.totals_us().items()
        if us and x.wall_us
    ]
    jobs = [x.job for x in ledgers]
    y = alt.Y("job:N", sort=jobs, title=None, axis=rows_axis(jobs), scale=alt.Scale(paddingInner=0.3))
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
            color=state_color({r["state"] for r in rows}),
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
    return Plot("where-time-went", "Where the time went", f"Share of useful time: {described}.", theme(chart))


def recoveries(ledgers: Sequence[Ledger]) -> Plot | None:
    """Seconds from an eviction until work went on; one mark for each."""
    rows = [row for row in evict_rows(ledgers) if row["back"] is not None]
    if not rows:
        return None
    jobs = [x.job for x in ledgers if any(r["job"] == x.job for r in rows)]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_point(filled=True, size=90, opacity=0.85)
        .encode(
            x=alt.X("back:Q", title="seconds from the eviction until work went on", axis=alt.Axis(tickCount=8)),
            y=alt.Y("job:N", sort=jobs, title=None, axis=rows_axis(jobs)),
            shape=alt.Shape("signal:N", scale=SIGNALS),
            color=alt.Color("job:N", scale=jobs_scale(ledgers), legend=None),
        )
        .properties(width=WIDTH, height=alt.Step(44))
    )
    slowest = max(row["back"] for row in rows)
    return Plot(
        "recovery", "Back at work", f"{len(rows)} recoveries, the slowest took {slowest:.1f} seconds.", theme(chart)
    )


def losses(found: Sequence[tuple[str, str, int]], *, slug: str = "losses") -> Plot:
    """Preemptions by hour and pool, stacked, on an axis where an hour without one takes its place."""
    pools = sorted({pool for _, pool, _ in found})
    rows, tops = list[dict[str, Any]](), Counter[str]()
    for hour, pool, count in found:
        begin = round(datetime.fromisoformat(hour).timestamp()) * 1000
        low, tops[hour] = tops[hour], tops[hour] + count
        rows.append({"from": begin, "to": begin + HOUR_MS - GAP_MS, "pool": pool, "low": low, "high": tops[hour]})
    inks = [INK[state] for state in (State.LOST, State.CHECKPOINTING, State.WAITING, State.PRODUCTIVE)]
    scale = alt.Scale(domain=pools, range=[inks[n % len(inks)] for n in range(len(pools))])
    ends = (
        min(row["from"] for row in rows),
        max(max(r["from"] for r in rows) + HOUR_MS, min(r["from"] for r in rows) + LEAST_MS),
    )
    most = max(tops.values(), default=0)
    steps = alt.Axis(values=list(range(0, most + 1, max(1, most // 4))), format="d")
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_rect()
        .encode(
            x=alt.X(
                "from:T", title="UTC", scale=alt.Scale(type="utc", domain=list(ends), nice=False), axis=time_axis(3600)
            ),
            x2="to:T",
            y=alt.Y("low:Q", title="preemptions", axis=steps),
            y2="high:Q",
            color=alt.Color("pool:N", scale=scale),
        )
        .properties(width=WIDTH, height=140)
    )
    total = sum(count for _, _, count in found)
    described = f"{total} preemptions in {len(tops)} hours, of {len(pools)} pools."
    return Plot(slug, "Preemptions by hour", described, theme(chart))
