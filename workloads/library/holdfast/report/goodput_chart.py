"""The plot of the goodput stack. goodput.py counts what it draws."""

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt

from holdfast.ledger.timeline import State
from holdfast.report.goodput import SECOND_US, Bucket, moment
from holdfast.report.theme import ORDER, WIDTH, Plot, state_color, theme, time_axis

# From this length of a bucket on, its height is given in the unit of so many seconds.
UNITS = ((3600, "hours", 3600), (60, "minutes", 60), (0, "seconds", 1))


def stack(found: Sequence[Bucket]) -> Plot:
    length_s = found[0].length_us // SECOND_US
    unit, unit_s = next((name, seconds) for least, name, seconds in UNITS if length_s >= least)
    rows = list(_rows(found, unit_s))
    bars = (
        alt.Chart(alt.Data(values=rows))
        .mark_rect()
        .encode(
            x=alt.X("from:T", title="UTC", scale=alt.Scale(type="utc"), axis=time_axis(length_s)),
            x2="to:T",
            y=alt.Y("low:Q", title=f"{unit} of all jobs", axis=alt.Axis(tickCount=5)),
            y2="high:Q",
            color=state_color({row["state"] for row in rows}),
        )
        .properties(width=WIDTH, height=220)
    )
    wall = sum(b.wall_us for b in found)
    kept = sum(b.states_us.get(State.PRODUCTIVE, 0) for b in found)
    # Buckets without time are left out before, so each has a goodput.
    worst = min(found, key=lambda b: b.goodput)
    described = (
        f"{kept / wall:.0%} of {wall / 1e6 / unit_s:.1f} {unit} were productive; "
        f"the least productive bar is {moment(worst.begin_us, length_s)} with {worst.goodput:.0%}."
    )
    return Plot(
        "goodput", "Where the time of all jobs went", described, theme(bars), f"One bar: {_length_text(length_s)}"
    )


def _rows(found: Iterable[Bucket], unit_s: int) -> Iterable[dict[str, Any]]:
    for bucket in found:
        gap_us = bucket.length_us // 12  # between two bars
        edges = {"from": bucket.begin_us // 1000, "to": (bucket.begin_us + bucket.length_us - gap_us) // 1000}
        below_us = 0
        for state in (s for s in ORDER if s in bucket.states_us):
            high_us = below_us + bucket.states_us[state]
            # Rounded: the last bit of a float may differ between machines, and tests compare the specification.
            low, high = (round(us / 1e6 / unit_s, 6) for us in (below_us, high_us))
            yield edges | {"state": state.value, "low": low, "high": high}
            below_us = high_us


def _length_text(length_s: int) -> str:
    for seconds, name in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if length_s >= seconds:
            count = length_s // seconds
            return f"one {name}" if count == 1 else f"{count} {name}s"
    raise AssertionError(length_s)
