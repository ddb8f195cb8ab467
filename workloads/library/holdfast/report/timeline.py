"""The plot of the state of each lane over time."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import altair as alt

from holdfast.ledger.account import USEFUL, JobLedger
from holdfast.ledger.timeline import Span, State
from holdfast.report import theme
from holdfast.report.bounds import MOST_BARS, MOST_LANES, MOST_MARKS, Cut, cut, format_count, thin
from holdfast.report.charts import list_evictions, make_time_axis, since_begin
from holdfast.report.theme import Plot
from holdfast.vocabulary.telemetry import KIND_BATCH

Row = dict[str, Any]


class Lane(NamedTuple):
    """One row of the plot: a job, or one of its workers."""

    ledger: JobLedger
    name: str
    spans: list[Span]

    @property
    def unused_us(self) -> int:
        total_us = 0
        for span in self.spans:
            if span.state not in USEFUL:
                total_us += span.length_us
        return total_us


def timeline(ledgers: Sequence[JobLedger], *, slug: str, title: str) -> Plot:
    """Plots the states of each lane, with evictions above a bar and commits below it."""
    unit, unit_s = theme.time_unit(ledgers)
    lanes = _choose_lanes(ledgers)
    names = [lane.name for lane in lanes.rows]
    bars: list[Row] = []
    is_dense = False
    for lane in lanes.rows:
        limit = MOST_BARS // len(names)
        bars += _make_bars(lane, unit_s, limit)
        is_dense = is_dense or len(lane.spans) > limit
    evictions = _make_eviction_marks(ledgers, names, unit_s)
    commits = _make_commit_marks(ledgers, names, unit_s)
    accounts = "; ".join(_describe_account(ledger) for ledger in ledgers)
    notes = [_describe_marks(ledgers, len(evictions), len(commits))]
    if is_dense:
        notes.append("dense stretches show the sum of each state")
    if lanes.rest:
        total = len(names) + len(lanes.rest)
        count = format_count(len(names), total, "places")
        notes.append(f"{count}, those that lost the most time")
    chart = _draw(unit, names, bars, evictions, commits)
    return Plot(slug, title, f"Timeline. {accounts}.", theme.spec(chart), "; ".join(notes))


def _choose_lanes(ledgers: Iterable[JobLedger]) -> Cut[Lane]:
    """Keeps the lanes that lost the most time."""
    lanes: list[Lane] = []
    for ledger in ledgers:
        lanes += _make_lanes(ledger)
    return cut(lanes, MOST_LANES, lambda lane: lane.unused_us)


def _make_lanes(ledger: JobLedger) -> Iterator[Lane]:
    spans_by_lane: dict[int, list[Span]] = defaultdict(list)
    for span in ledger.spans:
        spans_by_lane[span.lane].append(span)
    for number in range(ledger.lanes):
        yield Lane(ledger, _lane_name(ledger, number), spans_by_lane[number])


def _lane_name(ledger: JobLedger, lane: int) -> str:
    if ledger.lanes == 1:
        return ledger.run
    return f"{ledger.run} worker {lane + 1}"


def _make_eviction_marks(
    ledgers: Iterable[JobLedger], names: Sequence[str], unit_s: float
) -> list[Row]:
    marks: list[Row] = []
    for ledger, eviction in list_evictions(ledgers):
        name = _lane_name(ledger, eviction.lane)
        if name in names:
            mark = {
                "lane": name,
                "t": since_begin(ledger, eviction.t_us, unit_s),
                "signal": theme.signal(eviction.signal),
            }
            marks.append(mark)
    return thin(marks, MOST_MARKS)


def _make_commit_marks(
    ledgers: Iterable[JobLedger], names: Sequence[str], unit_s: float
) -> list[Row]:
    marks: list[Row] = []
    for ledger in ledgers:
        name = _lane_name(ledger, 0)
        if name not in names:
            continue
        for commit_us in ledger.commits_us:
            marks.append({"lane": name, "t": since_begin(ledger, commit_us, unit_s)})
    return thin(marks, MOST_MARKS)


def _draw(
    unit: str,
    names: Sequence[str],
    bars: Sequence[Row],
    evictions: Sequence[Row],
    commits: Sequence[Row],
) -> Any:
    y = alt.Y(
        "lane:N",
        sort=list(names),
        title=None,
        scale=alt.Scale(paddingInner=0.4),
        axis=theme.rows_axis(names),
    )
    step = 44 if len(names) < 6 else 32
    half = round(step * 0.3)
    states = {bar["state"] for bar in bars}
    bar_layer = (
        alt.Chart(alt.Data(values=list(bars)))
        .mark_bar()
        .encode(
            x=make_time_axis(unit, "from"),
            x2="to:Q",
            y=y,
            color=theme.state_color(states),
        )
    )
    eviction_layer = (
        alt.Chart(alt.Data(values=list(evictions)))
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
    commit_layer = (
        alt.Chart(alt.Data(values=list(commits)))
        .mark_tick(
            thickness=1.5,
            size=6,
            color=theme.COLOR[State.CHECKPOINTING],
            orient="vertical",
            yOffset=half + 4,
        )
        .encode(x="t:Q", y=y)
    )
    return (
        (bar_layer + eviction_layer + commit_layer)
        .resolve_legend(shape="independent")
        .properties(width=theme.WIDTH, height=alt.Step(step))
    )


Stretch = tuple[int, int, State]
"""Start and end in microseconds, and the state between them."""


def _make_bars(lane: Lane, unit_s: float, limit: int) -> Iterator[Row]:
    """Yields a bar for each span, or bars by stretch if there are more than `limit` spans."""
    if len(lane.spans) <= limit:
        stretches: Iterable[Stretch] = _merge_slivers(lane)
    else:
        stretches = _sum_stretches(lane, limit)
    for begin_us, end_us, state in stretches:
        yield {
            "lane": lane.name,
            "from": since_begin(lane.ledger, begin_us, unit_s),
            "to": since_begin(lane.ledger, end_us, unit_s),
            "state": state.value,
        }


def _merge_slivers(lane: Lane) -> list[Stretch]:
    """Joins spans shorter than a hundredth of a pixel, so that bars do not depend on rounding."""
    sliver_us = (lane.ledger.end_us - lane.ledger.begin_us) // (100 * theme.WIDTH)
    stretches: list[Stretch] = []
    for begin_us, end_us, state, _ in lane.spans:
        if stretches:
            previous_begin_us, _, previous_state = stretches[-1]
            if end_us - begin_us < sliver_us or previous_state is state:
                stretches[-1] = (previous_begin_us, end_us, previous_state)
                continue
        stretches.append((begin_us, end_us, state))
    return stretches


def _sum_stretches(lane: Lane, limit: int) -> Iterator[Stretch]:
    """Divides the lane into equal stretches and yields the time of each state in them."""
    begin_us = lane.spans[0].begin_us
    states = {span.state for span in lane.spans}
    count = max(1, limit // len(states))
    # Rounded up: rounded down, the last microseconds would need one more stretch.
    whole_us = lane.spans[-1].end_us - begin_us
    length_us = -(-whole_us // count)
    sums: dict[int, Counter[State]] = defaultdict(Counter)
    for low_us, high_us, state, _ in lane.spans:
        while low_us < high_us:
            # Integers only: floats lose microseconds, and the states would no longer add up.
            number = (low_us - begin_us) // length_us
            border_us = min(high_us, begin_us + (number + 1) * length_us)
            sums[number][state] += border_us - low_us
            low_us = border_us
    for number, durations_us in sorted(sums.items()):
        low_us = begin_us + number * length_us
        for state in theme.ORDER:
            if durations_us[state]:
                high_us = low_us + durations_us[state]
                yield low_us, high_us, state
                low_us = high_us


def _describe_marks(ledgers: Sequence[JobLedger], evictions: int, commits: int) -> str:
    all_evictions = 0
    all_commits = 0
    for ledger in ledgers:
        all_evictions += len(ledger.recoveries)
        all_commits += len(ledger.commits_us)
    note = f"{format_count(evictions, all_evictions, 'evictions').capitalize()} above a bar"
    if not all_commits:
        return note
    return f"{note}, {format_count(commits, all_commits, 'committed checkpoints')} below it"


def _describe_account(ledger: JobLedger) -> str:
    losses = f"{len(ledger.recoveries)} evictions"
    if ledger.kind != KIND_BATCH:
        losses += f" and {ledger.lost} steps done again"
    return f"{ledger.run}: {ledger.seconds:.0f} s, {ledger.goodput:.0%} useful, {losses}"
