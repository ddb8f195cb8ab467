"""The plots, as Vega-Lite specifications and as SVG that follows the page's colours.

A specification is plain JSON (the tests compare it); the SVG stands alone. Each plot has a table
behind it in the page.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

import altair as alt

from holdfast.ledger.account import Point
from holdfast.ledger.job_ledger import JobLedger
from holdfast.ledger.timeline import State
from holdfast.report.bounds import MOST_LIVES, MOST_MARKS, MOST_POINTS, delay, spread_each
from holdfast.report.tables import Loss, few_pools
from holdfast.report.theme import (
    COLOR,
    ORDER,
    SIGNALS,
    WIDTH,
    Plot,
    count_of,
    every_eviction,
    evict_rows,
    jobs_scale,
    marked,
    rows_axis,
    signal,
    state_color,
    theme,
    time_axis,
    time_unit,
)
from holdfast.report.totals import totals_of

HOUR_MS = 3_600_000
GAP_MS = HOUR_MS // 12  # between two bars
# Of the axis: a single preemption would be a bar as wide as the plot.
LEAST_MS = 12 * HOUR_MS
FEW_NAMES = 3


def progress(ledgers: Sequence[JobLedger], *, slug: str, unit: str, title: str) -> Plot:
    """Work done against time. A life is one line; an eviction that loses work is a fall."""
    name, unit_s = time_unit(ledgers)
    rows: list[dict[str, Any]] = [
        {"job": x.run, "t": round((t - x.begin_us) / 1e6 / unit_s, 6), "done": done, "life": life}
        for x in ledgers
        for t, done, life in outline(x.account.progress, MOST_POINTS // len(ledgers))
    ]
    shown = marked(every_eviction(ledgers))
    # No point at all is possible: every job may have died before its first step.
    top = max((row["done"] for row in rows), default=1)
    x_axis = alt.X("t:Q", title=f"{name} since the run began", axis=alt.Axis(grid=False, tickCount=10))
    # Room above the highest line for the names; a `nice` domain would differ from what _names counts with.
    scale = alt.Scale(domain=[0, top * 1.2], nice=False)
    y_axis = alt.Y("done:Q", title=unit, scale=scale, axis=alt.Axis(format="~s"))
    color = alt.Color("job:N", scale=jobs_scale(ledgers), legend=None)
    base = alt.Chart(alt.Data(values=rows)).encode(x=x_axis, y=y_axis, color=color)
    # The same points twice: by job they join the runs and so draw the fall, by life they do not.
    falls = base.mark_line(strokeWidth=1.2, strokeDash=[2, 3], opacity=0.7).encode(detail="job:N")
    lines = base.mark_line(strokeWidth=2.4, strokeCap="round", strokeJoin="round").encode(detail="life:N")
    marks = (
        alt.Chart(alt.Data(values=evict_rows(shown, unit_s)))
        .mark_point(filled=True, size=80, opacity=1, stroke="#ffffff", strokeWidth=0.8)
        .encode(x="t:Q", y="done:Q", shape=alt.Shape("signal:N", scale=SIGNALS), color=color)
    )
    names = (
        alt.Chart(alt.Data(values=_names(ledgers, unit_s, top)))
        .mark_text(align="right", baseline="bottom", dx=-8, dy=-4, fontWeight="bold")
        .encode(x="t:Q", y="done:Q", text="job:N", color=color)
    )
    chart = (falls + lines + marks + names).properties(width=WIDTH + 60, height=250)
    described = f"{unit.capitalize()} against time. {_ends(ledgers)}."
    return Plot(slug, title, described, theme(chart), "; ".join(_notes(ledgers, len(shown))))


def _notes(ledgers: Sequence[JobLedger], shown: int) -> Iterable[str]:
    yield "Dotted: nothing is running"
    if any(_many_lives(x.account.progress) for x in ledgers):
        yield f"a job of more than {MOST_LIVES} lives is one line"
    evictions = len(every_eviction(ledgers))
    if shown < evictions:
        yield f"{count_of(shown, evictions, 'evictions')} marked"


def outline(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many points that look like all: of each stretch the first, the lowest, the highest and the last."""
    if _many_lives(points):
        # Many lives as lines of their own would be thinner than their strokes, and each needs four points.
        points = [(t, done, 0) for t, done, _ in points]
    if len(points) <= most:
        return list(points)
    lives = points[-1][2] - points[0][2] + 1
    begin, end = points[0][0], points[-1][0]
    # Rounded up, and four points a stretch: a stretch more would go beyond the limit.
    length = max(1, -(-(end - begin + 1) // max(1, most // 4 - lives)))
    kept: list[Point] = []
    for _, found in groupby(points, key=lambda point: (point[2], (point[0] - begin) // length)):
        part = list(found)
        # A fall between two points that were kept would vanish without the lowest and the highest.
        numbers = {0, len(part) - 1, *(choose(range(len(part)), key=lambda n: part[n][1]) for choose in (min, max))}
        kept += [part[n] for n in sorted(numbers)]
    return kept


def _many_lives(points: Sequence[Point]) -> bool:
    return bool(points) and points[-1][2] - points[0][2] >= MOST_LIVES


def _names(ledgers: Sequence[JobLedger], unit_s: float, top: float) -> list[dict[str, Any]]:
    """Where a line ends. Of many jobs, none within the height of a letter of another."""
    rows = [_last(x, unit_s) for x in ledgers if x.account.progress]
    if len(rows) > FEW_NAMES:
        highest = 1.2 * top
        for row in sorted(rows, key=lambda row: -row["done"]):
            row["done"] = highest = min(row["done"], highest - 0.08 * top)
    return rows


def _last(ledger: JobLedger, unit_s: float) -> dict[str, Any]:
    t, done, _ = ledger.account.progress[-1]
    # Runs that end at the same step have their names one above the other.
    above = 0.07 * done if ledger.run.endswith("-naive") else 0.0
    return {"job": ledger.run, "t": round((t - ledger.begin_us) / 1e6 / unit_s, 6), "done": done + above}


def _ends(ledgers: Sequence[JobLedger]) -> str:
    return "; ".join(
        f"{x.run} reached {x.account.progress[-1][1]:.0f} after {x.seconds:.0f} s"
        for x in ledgers
        if x.account.progress
    )


def where_time_went(ledgers: Sequence[JobLedger], rest: Sequence[JobLedger] = ()) -> Plot:
    """A bar for each job, and one for all the others together."""
    # The rest is one bar, so that the bars of a page add up to all jobs.
    totals = [totals_of(x.run, [x]) for x in ledgers] + ([totals_of(f"{len(rest):,} other jobs", rest)] if rest else [])
    rows: list[dict[str, Any]] = [
        {"job": x.name, "state": s.value, "share": us / x.wall_us, "order": ORDER.index(s)}
        for x in totals
        for s, us in x.states_us.items()
        # An event file with one line has a job of no length, whose shares are undefined.
        if us and x.wall_us
    ]
    jobs = [x.name for x in totals]
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
        alt.Chart(alt.Data(values=[{"job": x.name, "label": f"{x.goodput:.0%} useful"} for x in totals]))
        .mark_text(align="left", dx=6, color="#ffffff", fontWeight="bold")
        .encode(x=alt.datum(0), y=y, text="label:N")
    )
    chart = (bars + labels).properties(width=WIDTH, height=alt.Step(34))
    described = ", ".join(f"{x.name} {x.goodput:.0%}" for x in totals)
    return Plot("where-time-went", "Where the time went", f"Share of useful time: {described}.", theme(chart))


def recoveries(ledgers: Sequence[JobLedger]) -> Plot | None:
    """Seconds from an eviction until work went on; one mark for each."""
    pairs = sorted(((x, r) for x, r in every_eviction(ledgers) if r.seconds is not None), key=lambda p: -delay(p[1]))
    # An empty plot would read as "recovered at once".
    if not pairs:
        return None
    # The slowest of a stretch of seconds stands for those that its mark would cover.
    shown = spread_each(pairs, MOST_MARKS, lambda p: (p[0].run, signal(p[1].signal)), lambda p: delay(p[1]))
    rows = [{"job": x.run, "signal": signal(r.signal), "back": r.seconds} for x, r in shown]
    jobs = [x.run for x in ledgers if any(r["job"] == x.run for r in rows)]
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
    described = f"{len(pairs)} recoveries, the slowest took {pairs[0][1].seconds:.1f} seconds."
    note = f"{count_of(len(shown), len(pairs), 'recoveries')} marked, the slowest of each stretch"
    return Plot("recovery", "Back at work", described, theme(chart), note if len(shown) < len(pairs) else "")


def losses(found: Sequence[Loss], *, slug: str = "losses", hours: int = 1) -> Plot:
    """Preemptions by stretch of hours and pool, stacked, on an axis where a stretch without one takes its place."""
    inks = [COLOR[state] for state in (State.LOST, State.CHECKPOINTING, State.WAITING, State.PRODUCTIVE)]
    # More pools than colours would give two pools one colour.
    found = few_pools(found, len(inks))
    pools = sorted({pool for _, pool, _ in found})
    # Stacked here: these are rectangles on an axis of time, where an hour without a loss keeps its room.
    rows, tops = list[dict[str, Any]](), Counter[str]()
    for hour, pool, count in found:
        begin = round(datetime.fromisoformat(hour).timestamp()) * 1000
        low, tops[hour] = tops[hour], tops[hour] + count
        rows.append(
            {"from": begin, "to": begin + hours * (HOUR_MS - GAP_MS), "pool": pool, "low": low, "high": tops[hour]}
        )
    scale = alt.Scale(domain=pools, range=inks[: len(pools)])
    ends = (
        min(row["from"] for row in rows),
        max(max(r["from"] for r in rows) + hours * HOUR_MS, min(r["from"] for r in rows) + LEAST_MS),
    )
    most = max(tops.values(), default=0)
    # Chosen here: a low count would get ticks at halves, which `d` rounds to labels that stand twice.
    steps = alt.Axis(values=list(range(0, most + 1, max(1, most // 4))), format="d")
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_rect()
        .encode(
            x=alt.X(
                "from:T",
                title="UTC",
                scale=alt.Scale(type="utc", domain=list(ends), nice=False),
                axis=time_axis(hours * 3600),
            ),
            x2="to:T",
            y=alt.Y("low:Q", title="preemptions", axis=steps),
            y2="high:Q",
            color=alt.Color("pool:N", scale=scale),
        )
        .properties(width=WIDTH, height=140)
    )
    total = sum(count for _, _, count in found)
    described = f"{total} preemptions in {len(tops)} {_stretches(hours)}, of {len(pools)} pools."
    return Plot(slug, f"Preemptions by {'hour' if hours == 1 else f'{hours} hours'}", described, theme(chart))


def _stretches(hours: int) -> str:
    return "hours" if hours == 1 else f"stretches of {hours} hours"
