"""The plot of what each lane did, second by second."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import altair as alt

from holdfast.ledger.account import USEFUL, JobLedger
from holdfast.ledger.timeline import Span, State
from holdfast.report import theme
from holdfast.report.bounds import MOST_BARS, MOST_LANES, MOST_MARKS, count_of, cut, thin
from holdfast.report.charts import every_eviction, since_begin, time_of_run
from holdfast.report.theme import Plot
from holdfast.vocabulary.telemetry import KIND_BATCH


class Lane(NamedTuple):
    ledger: JobLedger
    name: str
    spans: list[Span]

    @property
    def unused_us(self) -> int:
        return sum(span.length_us for span in self.spans if span.state not in USEFUL)


def timeline(ledgers: Sequence[JobLedger], *, slug: str, title: str) -> Plot:
    """What each lane did, second by second; evictions above a bar, commits below it."""
    name, unit_s = theme.time_unit(ledgers)
    found = cut(
        [lane for x in ledgers for lane in _lanes(x)], MOST_LANES, lambda lane: lane.unused_us
    )
    rows = [row for lane in found.rows for row in _bars(lane, unit_s, MOST_BARS // len(found.rows))]
    lanes = [lane.name for lane in found.rows]
    evictions = thin(
        [e for e in every_eviction(ledgers) if _lane(e[0], e[1].lane) in lanes], MOST_MARKS
    )
    evicted = [
        {
            "lane": _lane(x, r.lane),
            "t": since_begin(x, r.t_us, unit_s),
            "signal": theme.signal(r.signal),
        }
        for x, r in evictions
    ]
    commits = thin(
        [(x, t) for x in ledgers for t in x.commits_us if _lane(x, 0) in lanes], MOST_MARKS
    )
    saved = [
        {
            "lane": _lane(x, 0),
            "t": since_begin(x, t, unit_s),
        }
        for x, t in commits
    ]
    y = alt.Y(
        "lane:N",
        sort=lanes,
        title=None,
        scale=alt.Scale(paddingInner=0.4),
        axis=theme.rows_axis(lanes),
    )
    step = 44 if len(lanes) < 6 else 32
    half = round(step * 0.3)
    colored = theme.state_color({row["state"] for row in rows})
    bars = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar()
        .encode(
            x=time_of_run(name, "from"),
            x2="to:Q",
            y=y,
            color=colored,
        )
    )
    marks = (
        alt.Chart(alt.Data(values=evicted))
        .mark_point(
            filled=True,
            size=64,
            opacity=1,
            color=theme.MARK_COLOR,
            stroke="#ffffff",
            strokeWidth=0.8,
            yOffset=-half,
        )
        .encode(
            x="t:Q",
            y=y,
            shape=alt.Shape("signal:N", scale=theme.SIGNALS),
        )
    )
    ticks = (
        alt.Chart(alt.Data(values=saved))
        .mark_tick(
            thickness=1.5,
            size=6,
            color=theme.COLOR[State.CHECKPOINTING],
            orient="vertical",
            yOffset=half + 4,
        )
        .encode(x="t:Q", y=y)
    )
    chart = (
        (bars + marks + ticks)
        .resolve_legend(shape="independent")
        .properties(width=theme.WIDTH, height=alt.Step(step))
    )
    described = "Timeline. " + "; ".join(_account_in_words(x) for x in ledgers) + "."
    notes = [_marks_in_words(ledgers, len(evicted), len(saved))]
    if any(len(lane.spans) > MOST_BARS // len(lanes) for lane in found.rows):
        notes.append("dense stretches show the sum of each state")
    if found.rest:
        notes.append(
            f"{count_of(len(lanes), len(lanes) + len(found.rest), 'places')}, those that lost the"
            " most time"
        )
    return Plot(slug, title, described, theme.spec(chart), "; ".join(notes))


def _lanes(ledger: JobLedger) -> Iterable[Lane]:
    spans: dict[int, list[Span]] = defaultdict(list)
    for span in ledger.spans:
        spans[span.lane].append(span)
    return (Lane(ledger, _lane(ledger, n), spans[n]) for n in range(ledger.lanes))


def _lane(ledger: JobLedger, lane: int) -> str:
    return ledger.run if ledger.lanes == 1 else f"{ledger.run} worker {lane + 1}"


def _bars(lane: Lane, unit_s: float, most: int) -> Iterable[dict[str, Any]]:
    """A bar for each span; of too many, bars by stretch that are as long as the time of each state
    in it.
    """
    few = len(lane.spans) <= most
    for begin, end, state in _exactly(lane) if few else _by_stretch(lane, most):
        low, high = (since_begin(lane.ledger, t, unit_s) for t in (begin, end))
        yield {
            "lane": lane.name,
            "from": low,
            "to": high,
            "state": state.value,
        }


def _exactly(lane: Lane) -> Iterable[tuple[int, int, State]]:
    """Without the slivers that rounding leaves, which would make the bars depend on the last bit of
    a clock.
    """
    # A hundredth of a pixel.
    sliver_us = (lane.ledger.end_us - lane.ledger.begin_us) // (100 * theme.WIDTH)
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
    # Rounded up: rounded down, the last microseconds would need a stretch more than there is room
    # for.
    length = -(-(lane.spans[-1].end_us - begin) // count)
    sums: dict[int, Counter[State]] = defaultdict(Counter)
    for low, high, state, _ in lane.spans:
        while low < high:
            # Integers throughout: floats lose microseconds, and the states would no longer add up.
            number = (low - begin) // length
            until = min(high, begin + (number + 1) * length)
            sums[number][state] += until - low
            low = until
    for number, states in sorted(sums.items()):
        at = begin + number * length
        for state in (s for s in theme.ORDER if states[s]):
            yield at, at + states[state], state
            at += states[state]


def _marks_in_words(ledgers: Sequence[JobLedger], evictions: int, commits: int) -> str:
    every = sum(len(x.recoveries) for x in ledgers), sum(len(x.commits_us) for x in ledgers)
    note = f"{count_of(evictions, every[0], 'evictions').capitalize()} above a bar"
    if every[1]:
        return f"{note}, {count_of(commits, every[1], 'committed checkpoints')} below it"
    return note


def _account_in_words(ledger: JobLedger) -> str:
    if ledger.kind == KIND_BATCH:
        what = f"{len(ledger.recoveries)} evictions"
    else:
        what = f"{len(ledger.recoveries)} evictions and {ledger.lost} steps done again"
    return f"{ledger.run}: {ledger.seconds:.0f} s, {ledger.goodput:.0%} useful, {what}"
