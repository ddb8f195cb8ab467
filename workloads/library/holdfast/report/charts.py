"""The plots, as Vega-Lite specifications and as SVG that follows the page's colours.

A specification is plain JSON (the tests compare it); the SVG needs no other file. Each plot has a
table behind it in the page.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import altair as alt

from holdfast.ledger.account import Point, Recovery
from holdfast.ledger.job_ledger import JobLedger
from holdfast.report import theme
from holdfast.report.bounds import MOST_LIVES, MOST_MARKS, MOST_POINTS, count_of, thin
from holdfast.report.theme import Plot

Row = dict[str, Any]


def every_eviction(ledgers: Iterable[JobLedger]) -> list[tuple[JobLedger, Recovery]]:
    return [(x, r) for x in ledgers for r in x.recoveries]


def since_begin(ledger: JobLedger, t_us: int, unit_s: float) -> float:
    # Rounded: the last bit of a float may differ between machines, and tests compare the
    # specification.
    return round((t_us - ledger.begin_us) / 1e6 / unit_s, 6)


def time_of_run(unit: str, field: str = "t") -> alt.X:
    return alt.X(
        f"{field}:Q", title=f"{unit} since the run began", axis=alt.Axis(grid=False, tickCount=10)
    )


def progress(
    ledgers: Sequence[JobLedger],
    *,
    slug: str,
    unit: str,
    title: str,
) -> Plot:
    """Work done against time. A life is one line; an eviction that loses work is a fall."""
    name, unit_s = theme.time_unit(ledgers)
    rows: list[Row] = [
        {
            "job": x.run,
            "t": since_begin(x, t, unit_s),
            "done": done,
            "life": life,
        }
        for x in ledgers
        for t, done, life in outline(x.progress, MOST_POINTS // len(ledgers))
    ]
    evictions = every_eviction(ledgers)
    shown = thin(evictions, MOST_MARKS)
    marked = [
        {
            "job": x.run,
            "t": since_begin(x, r.t_us, unit_s),
            "signal": theme.signal(r.signal),
            "done": _done_at(x, r.t_us),
        }
        for x, r in shown
    ]
    y_axis = alt.Y("done:Q", title=unit, axis=alt.Axis(format="~s"))
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=time_of_run(name),
        y=y_axis,
        color=theme.job_color(ledgers),
    )
    # The same points twice: by job they join the runs and so draw the fall, by life they do not.
    falls = base.mark_line(
        strokeWidth=1.2,
        strokeDash=[2, 3],
        opacity=0.7,
    ).encode(detail="job:N")
    lines = base.mark_line(
        strokeWidth=2.4,
        strokeCap="round",
        strokeJoin="round",
    ).encode(detail="life:N")
    marks = (
        alt.Chart(alt.Data(values=marked))
        .mark_point(
            filled=True,
            size=80,
            opacity=1,
            stroke="#ffffff",
            strokeWidth=0.8,
        )
        .encode(
            x="t:Q",
            y="done:Q",
            shape=alt.Shape("signal:N", scale=theme.SIGNALS),
            color="job:N",
        )
    )
    chart = (
        (falls + lines + marks)
        .properties(width=theme.WIDTH + 60, height=250)
        .resolve_legend(shape="independent")
    )
    notes = ["Dotted: nothing is running"]
    if any(_many_lives(x.progress) for x in ledgers):
        notes.append(f"a job of more than {MOST_LIVES} lives is one line")
    if len(shown) < len(evictions):
        notes.append(f"{count_of(len(shown), len(evictions), 'evictions')} marked")
    return Plot(
        slug,
        title,
        f"{unit.capitalize()} against time. {_ends(ledgers)}.",
        theme.spec(chart),
        "; ".join(notes),
    )


def outline(points: Sequence[Point], most: int) -> list[Point]:
    """At most this number: of each life the first and the last, so that every fall shows, and
    others evenly between.
    """
    if _many_lives(points):
        # Many lives as lines of their own would be thinner than their strokes.
        points = [(t, done, 0) for t, done, _ in points]
    lives = [list(life) for _, life in groupby(points, key=lambda point: point[2])]
    return [
        point for life in lives for point in (*thin(life[:-1], most // len(lives) - 1), life[-1])
    ]


def _many_lives(points: Sequence[Point]) -> bool:
    return bool(points) and points[-1][2] - points[0][2] >= MOST_LIVES


def _done_at(ledger: JobLedger, t_us: int) -> float:
    """Progress at a moment, as the chart draws it: the newest point before it."""
    points = ledger.progress
    # There may be thousands of points and hundreds of evictions: a search for each, not a scan.
    before = bisect_right(points, t_us, key=lambda point: point[0])
    return points[before - 1][1] if before else 0.0


def _ends(ledgers: Sequence[JobLedger]) -> str:
    return "; ".join(
        f"{x.run} reached {x.progress[-1][1]:.0f} after {x.seconds:.0f} s"
        for x in ledgers
        if x.progress
    )
