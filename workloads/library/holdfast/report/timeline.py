"""The plot of what each lane did, second by second."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import altair as alt

from holdfast.contract.telemetry import KIND_BATCH
from holdfast.ledger.account import Recovery
from holdfast.ledger.job_ledger import USEFUL, JobLedger
from holdfast.ledger.timeline import Span, State
from holdfast.report.bounds import MOST_BARS, MOST_LANES, MOST_MARKS, cut, spread
from holdfast.report.goodput import split
from holdfast.report.theme import (
    COLOR,
    MARK_COLOR,
    ORDER,
    SIGNALS,
    WIDTH,
    Plot,
    count_of,
    every_eviction,
    evict_rows,
    marked,
    rows_axis,
    state_color,
    theme,
    time_unit,
)

DEAD = frozenset({State.LOST, State.RESTARTING})


class Lane(NamedTuple):
    ledger: JobLedger
    number: int
    spans: list[Span]

    @property
    def name(self) -> str:
        return _lane(self.ledger, self.number)

    @property
    def unused_us(self) -> int:
        return sum(span.length_us for span in self.spans if span.state not in USEFUL)


def timeline(ledgers: Sequence[JobLedger], *, slug: str, title: str) -> Plot:
    """What each lane did, second by second; evictions above a bar, commits below it."""
    name, unit_s = time_unit(ledgers)
    found = cut([lane for x in ledgers for lane in _lanes(x)], MOST_LANES, lambda lane: lane.unused_us)
    share = MOST_BARS // len(found.rows)
    rows = [row for lane in found.rows for row in _bars(lane, unit_s, share)]
    lanes = [lane.name for lane in found.rows]
    evictions = _evict_rows(ledgers, lanes, unit_s)
    commits = [row for row in _commit_rows(ledgers, unit_s) if row["lane"] in lanes]
    y = alt.Y("lane:N", sort=lanes, title=None, scale=alt.Scale(paddingInner=0.4), axis=rows_axis(lanes))
    x = alt.X("from:Q", title=f"{name} since the run began", axis=alt.Axis(grid=False, tickCount=10))
    colored = state_color({row["state"] for row in rows})
    step = 44 if len(lanes) < 6 else 32
    half = round(step * 0.3)
    bars = alt.Chart(alt.Data(values=rows)).mark_bar().encode(x=x, x2="to:Q", y=y, color=colored)
    marks = (
        alt.Chart(alt.Data(values=evictions))
        .mark_point(filled=True, size=64, opacity=1, color=MARK_COLOR, stroke="#ffffff", strokeWidth=0.8, yOffset=-half)
        .encode(x="t:Q", y=y, shape=alt.Shape("signal:N", scale=SIGNALS))
    )
    ticks = (
        alt.Chart(alt.Data(values=commits))
        .mark_tick(thickness=1.5, size=6, color=COLOR[State.CHECKPOINTING], orient="vertical", yOffset=half + 4)
        .encode(x="t:Q", y=y)
    )
    chart = (bars + marks + ticks).resolve_legend(shape="independent").properties(width=WIDTH, height=alt.Step(step))
    described = "Timeline. " + "; ".join(_account_in_words(x) for x in ledgers) + "."
    notes = [_marks_in_words(ledgers, len(evictions), len(commits))]
    if any(len(lane.spans) > share for lane in found.rows):
        notes.append("where more happened than can be drawn, the states of a stretch stand side by side in order")
    if found.rest:
        notes.append(f"{count_of(len(lanes), len(lanes) + len(found.rest), 'places')}, those that lost the most time")
    return Plot(slug, title, described, theme(chart), "; ".join(notes))


def _lanes(ledger: JobLedger) -> Iterable[Lane]:
    spans: dict[int, list[Span]] = defaultdict(list)
    for span in ledger.spans:
        spans[span.lane].append(span)
    return (Lane(ledger, n, spans[n]) for n in range(ledger.lanes))


def _bars(lane: Lane, unit_s: float, most: int) -> Iterable[dict[str, Any]]:
    """A bar for each span; of too many, bars by stretch that are as long as the time of each state in it."""
    few = len(lane.spans) <= most
    for begin, end, state in _exactly(lane) if few else _by_stretch(lane, most):
        low, high = ((t - lane.ledger.begin_us) / 1e6 / unit_s for t in (begin, end))
        yield {"lane": lane.name, "from": round(low, 6), "to": round(high, 6), "state": state.value}


def _exactly(lane: Lane) -> Iterable[tuple[int, int, State]]:
    """Without the slivers that rounding leaves, which would make the bars depend on the last bit of a clock."""
    # A hundredth of a pixel.
    sliver_us = (lane.ledger.end_us - lane.ledger.begin_us) // (100 * WIDTH)
    drawn: list[tuple[int, int, State]] = []
    for begin, end, state, _ in lane.spans:
        if drawn and (end - begin < sliver_us or drawn[-1][2] is state):
            drawn[-1] = (drawn[-1][0], end, drawn[-1][2])
        else:
            drawn.append((begin, end, state))
    return drawn


def _by_stretch(lane: Lane, most: int) -> Iterable[tuple[int, int, State]]:
    begin = lane.spans[0].begin_us
    count = max(1, most // len({span.state for span in lane.spans}))
    # Rounded up: rounded down, the last microseconds would need a stretch more than there is room for.
    length = -(-(lane.spans[-1].end_us - begin) // count)
    sums: dict[int, Counter[State]] = defaultdict(Counter)
    for number, state, us in split(lane.spans, length, begin):
        sums[number][state] += us
    for number, states in sorted(sums.items()):
        at = begin + number * length
        for state in (s for s in ORDER if states[s]):
            yield at, at + states[state], state
            at += states[state]


def _commit_rows(ledgers: Sequence[JobLedger], unit_s: float) -> list[dict[str, Any]]:
    """Of each job as many as its share of the marks, spread over its time."""
    return [
        {"lane": _lane(x, 0), "t": round((t_us - x.begin_us) / 1e6 / unit_s, 6)}
        for x in ledgers
        for t_us in spread(x.account.commits_us, MOST_MARKS // len(ledgers), float)
    ]


def _lane(ledger: JobLedger, lane: int) -> str:
    return ledger.run if ledger.lanes == 1 else f"{ledger.run} worker {lane + 1}"


def _evict_rows(ledgers: Sequence[JobLedger], lanes: Sequence[str], unit_s: float) -> list[dict[str, Any]]:
    """As many as there is room for, of those on the lanes that are drawn."""
    # By identity: two evictions of one moment and signal are equal, and may be of different lanes.
    stands = {id(r): name for x in ledgers for r, name in _places(x)}
    pairs = marked(pair for pair in every_eviction(ledgers) if stands[id(pair[1])] in lanes)
    rows = evict_rows(pairs, unit_s)
    return [row | {"lane": stands[id(r)]} for (_, r), row in zip(pairs, rows, strict=True)]


def _places(ledger: JobLedger) -> Iterable[tuple[Recovery, str]]:
    """An eviction stands on the lane where work was lost or a restart began at that moment."""
    several = ledger.lanes > 1
    dead = sorted((s for s in ledger.spans if several and s.state in DEAD), key=lambda span: span.end_us)
    for recovery in ledger.recoveries:
        t_us = recovery.t_us
        first = bisect_left(dead, t_us, key=lambda span: span.end_us)
        # The one that ends next is among the first few of each lane.
        near = islice(dead, first, first + 8 * ledger.lanes)
        # Two seconds of grace: whoever evicts reads another clock than the process.
        lane = next((span.lane for span in near if span.begin_us - 2_000_000 <= t_us), 0)
        yield recovery, _lane(ledger, lane)


def _marks_in_words(ledgers: Sequence[JobLedger], evictions: int, commits: int) -> str:
    every = sum(len(x.recoveries) for x in ledgers), sum(len(x.account.commits_us) for x in ledgers)
    note = f"{count_of(evictions, every[0], 'evictions').capitalize()} above a bar"
    return f"{note}, {count_of(commits, every[1], 'committed checkpoints')} below it" if every[1] else note


def _account_in_words(ledger: JobLedger) -> str:
    what = (
        f"{len(ledger.recoveries)} evictions"
        if ledger.kind == KIND_BATCH
        else f"{len(ledger.recoveries)} evictions and {ledger.account.lost} steps done again"
    )
    return f"{ledger.run}: {ledger.seconds:.0f} s, {ledger.goodput:.0%} useful, {what}"
