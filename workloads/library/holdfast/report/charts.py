"""The plot of progress, as a Vega-Lite specification, and helpers that all plots share.

A specification is plain JSON, which tests compare. The page has a table for each plot.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import altair as alt

from holdfast.ledger.account import Point, Recovery
from holdfast.ledger.job_ledger import JobLedger
from holdfast.report import theme
from holdfast.report.bounds import MOST_LIVES, MOST_MARKS, MOST_POINTS, format_count, thin
from holdfast.report.theme import Plot

Row = dict[str, Any]


def list_evictions(ledgers: Iterable[JobLedger]) -> list[tuple[JobLedger, Recovery]]:
    evictions: list[tuple[JobLedger, Recovery]] = []
    for ledger in ledgers:
        for recovery in ledger.recoveries:
            evictions.append((ledger, recovery))
    return evictions


def since_begin(ledger: JobLedger, t_us: int, unit_s: float) -> float:
    """Returns the time since the job began, rounded, because tests compare specifications."""
    return round((t_us - ledger.begin_us) / 1e6 / unit_s, 6)


def make_time_axis(unit: str, field: str = "t") -> alt.X:
    title = f"{unit} since the run began"
    return alt.X(f"{field}:Q", title=title, axis=alt.Axis(grid=False, tickCount=10))


def progress(
    ledgers: Sequence[JobLedger],
    *,
    slug: str,
    unit: str,
    title: str,
) -> Plot:
    """Plots work against time: one line per life, and a fall where an eviction loses work."""
    time_name, unit_s = theme.time_unit(ledgers)
    points = _make_points(ledgers, unit_s)
    evictions = list_evictions(ledgers)
    marks = _make_marks(thin(evictions, MOST_MARKS), unit_s)
    chart = _draw(ledgers, time_name, unit, points, marks)
    notes = ["Dotted: nothing is running"]
    if any(_has_many_lives(ledger.progress) for ledger in ledgers):
        notes.append(f"a job of more than {MOST_LIVES} lives is one line")
    if len(marks) < len(evictions):
        count = format_count(len(marks), len(evictions), "evictions")
        notes.append(f"{count} marked")
    return Plot(
        slug,
        title,
        f"{unit.capitalize()} against time. {_describe_ends(ledgers)}.",
        theme.spec(chart),
        "; ".join(notes),
    )


def _make_points(ledgers: Sequence[JobLedger], unit_s: float) -> list[Row]:
    points: list[Row] = []
    for ledger in ledgers:
        for t_us, done, life in outline(ledger.progress, MOST_POINTS // len(ledgers)):
            point = {
                "job": ledger.run,
                "t": since_begin(ledger, t_us, unit_s),
                "done": done,
                "life": life,
            }
            points.append(point)
    return points


def _make_marks(evictions: Iterable[tuple[JobLedger, Recovery]], unit_s: float) -> list[Row]:
    marks: list[Row] = []
    for ledger, eviction in evictions:
        mark = {
            "job": ledger.run,
            "t": since_begin(ledger, eviction.t_us, unit_s),
            "signal": theme.signal(eviction.signal),
            "done": _find_progress(ledger, eviction.t_us),
        }
        marks.append(mark)
    return marks


def _draw(
    ledgers: Sequence[JobLedger],
    time_name: str,
    unit: str,
    points: Sequence[Row],
    marks: Sequence[Row],
) -> Any:
    base = alt.Chart(alt.Data(values=list(points))).encode(
        x=make_time_axis(time_name),
        y=alt.Y("done:Q", title=unit, axis=alt.Axis(format="~s")),
        color=theme.job_color(ledgers),
    )
    # The same points twice: joined by job they draw the falls, joined by life they do not.
    falls = base.mark_line(
        strokeWidth=1.2,
        strokeDash=[2, 3],
        opacity=0.7,
    ).encode(detail="job:N")
    lines = base.mark_line(strokeWidth=2.4, strokeCap="round", strokeJoin="round").encode(
        detail="life:N"
    )
    eviction_layer = (
        alt.Chart(alt.Data(values=list(marks)))
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
    return (
        (falls + lines + eviction_layer)
        .properties(width=theme.WIDTH + 60, height=250)
        .resolve_legend(shape="independent")
    )


def outline(points: Sequence[Point], limit: int) -> list[Point]:
    """Returns at most `limit` points: the first and the last of each life, so that every fall is
    visible, and others at even distances.
    """
    if _has_many_lives(points):
        # One line: the lines of many lives would be thinner than their strokes.
        points = [(t_us, done, 0) for t_us, done, _ in points]
    lives = [list(life) for _, life in groupby(points, key=lambda point: point[2])]
    kept_points: list[Point] = []
    for life in lives:
        kept_points += thin(life[:-1], limit // len(lives) - 1)
        kept_points.append(life[-1])
    return kept_points


def _has_many_lives(points: Sequence[Point]) -> bool:
    return bool(points) and points[-1][2] - points[0][2] >= MOST_LIVES


def _find_progress(ledger: JobLedger, t_us: int) -> float:
    """Returns the progress at a moment as the chart draws it: that of the newest point before."""
    points = ledger.progress
    # A binary search, because there may be thousands of points and hundreds of evictions.
    count = bisect_right(points, t_us, key=lambda point: point[0])
    return points[count - 1][1] if count else 0.0


def _describe_ends(ledgers: Sequence[JobLedger]) -> str:
    sentences: list[str] = []
    for ledger in ledgers:
        if ledger.progress:
            _, done, _ = ledger.progress[-1]
            sentences.append(f"{ledger.run} reached {done:.0f} after {ledger.seconds:.0f} s")
    return "; ".join(sentences)
