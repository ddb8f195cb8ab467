"""The plot of what each lane did, second by second. Called by page.py."""

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt

from infra.contract.telemetry import KIND_BATCH
from monitoring.ledger import Ledger
from monitoring.report.ink import (
    INK,
    MARK_INK,
    SIGNALS,
    WIDTH,
    Plot,
    evict_rows,
    rows_axis,
    state_color,
    theme,
    time_unit,
)
from monitoring.spans import State


def timeline(ledgers: Sequence[Ledger], *, slug: str, title: str) -> Plot:
    """What each lane did, second by second; evictions above a bar, commits below it."""
    name, unit_s = time_unit(ledgers)
    rows = [row for x in ledgers for row in _bars(x, unit_s)]
    lanes = [_lane(x, n) for x in ledgers for n in range(x.lanes)]
    y = alt.Y("lane:N", sort=lanes, title=None, scale=alt.Scale(paddingInner=0.4), axis=rows_axis(lanes))
    x = alt.X("from:Q", title=f"{name} since the run began", axis=alt.Axis(grid=False, tickCount=10))
    colored = state_color({row["state"] for row in rows})
    step = 44 if len(lanes) < 6 else 32
    half = round(step * 0.3)
    bars = alt.Chart(alt.Data(values=rows)).mark_bar().encode(x=x, x2="to:Q", y=y, color=colored)
    marks = (
        alt.Chart(alt.Data(values=[e | {"lane": lane} for e, lane in _evict_lanes(ledgers, unit_s)]))
        .mark_point(filled=True, size=64, opacity=1, color=MARK_INK, stroke="#ffffff", strokeWidth=0.8, yOffset=-half)
        .encode(x="t:Q", y=y, shape=alt.Shape("signal:N", scale=SIGNALS))
    )
    commits = (
        alt.Chart(alt.Data(values=[row for x in ledgers for row in _commit_rows(x, unit_s)]))
        .mark_tick(thickness=1.5, size=6, color=INK[State.CHECKPOINTING], orient="vertical", yOffset=half + 4)
        .encode(x="t:Q", y=y)
    )
    chart = (bars + marks + commits).resolve_legend(shape="independent").properties(width=WIDTH, height=alt.Step(step))
    described = "Timeline. " + "; ".join(_account_in_words(x) for x in ledgers) + "."
    note = "Evictions above a bar" + (
        ", committed checkpoints below it" if any(x.account.commits_us for x in ledgers) else ""
    )
    return Plot(slug, title, described, theme(chart), note)


def _bars(ledger: Ledger, unit_s: float) -> Iterable[dict[str, Any]]:
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
        low, high = ((t - ledger.begin_us) / 1e6 / unit_s for t in (begin, end))
        yield {"lane": _lane(ledger, lane), "from": round(low, 6), "to": round(high, 6), "state": state.value}


def _commit_rows(ledger: Ledger, unit_s: float) -> Iterable[dict[str, Any]]:
    for t_us in ledger.account.commits_us:
        yield {"lane": _lane(ledger, 0), "t": round((t_us - ledger.begin_us) / 1e6 / unit_s, 6)}


def _lane(ledger: Ledger, lane: int) -> str:
    return ledger.job if ledger.lanes == 1 else f"{ledger.job} worker {lane + 1}"


def _evict_lanes(ledgers: Sequence[Ledger], unit_s: float) -> Iterable[tuple[dict[str, Any], str]]:
    """An eviction stands on the lane where work was lost or a restart began at that moment."""
    for x in ledgers:
        for row, recovery in zip(evict_rows([x], unit_s), x.recoveries, strict=True):
            dead = (State.LOST, State.RESTARTING)
            gone = [s for s in x.spans if s.state in dead and s.begin_us - 2_000_000 <= recovery.t_us <= s.end_us]
            nearest = min(gone, key=lambda s: abs(s.end_us - recovery.t_us), default=None)
            yield row, _lane(x, nearest.lane if nearest else 0)


def _account_in_words(ledger: Ledger) -> str:
    what = (
        f"{len(ledger.recoveries)} evictions"
        if ledger.kind == KIND_BATCH
        else f"{len(ledger.recoveries)} evictions and {ledger.account.lost} steps done again"
    )
    return f"{ledger.job}: {ledger.seconds:.0f} s, {ledger.goodput:.0%} useful, {what}"
