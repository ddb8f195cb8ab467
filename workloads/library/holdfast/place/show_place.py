"""Prints the answer of the place command: the options, the choice and its reason; basis and limits on standard error."""

import math
import sys
from pathlib import Path

import numpy as np

from holdfast.contract.capacity import Placement
from holdfast.place import emit, weeks
from holdfast.place.ask import Answer
from holdfast.place.belief import SAME_USD, Option, World
from holdfast.place.commitment import Commitment
from holdfast.place.job import Job
from holdfast.place.place_json import body, per_1000, price_dates, rhythm, spot_range
from holdfast.place.show import basis, print_json, print_table

SHOWN_REGIONS = 5
"""Of those that are dearer than the chosen one; all are in the JSON."""


def place(job: Job, answer: Answer, *, google: list[str] | None, written: list[Path], as_json: bool) -> None:
    if as_json:
        print_json(body(job, answer, google, written))
        return
    head = ("capacity", "how", "USD/h", "cost p50", "p95", "done p50 h", "p95 h", "late", "evicted", "")
    print_table(head, [_row(option, option is answer.chosen) for option in answer.options])
    print(f"\n{answer.chosen.placement.value} in {answer.region}: {answer.reason}")
    for line in _doubts(job, answer):
        print(line)
    interval = emit.checkpoint(job, answer.world)["intervalSeconds"]
    if interval:
        print(f"checkpoint every {interval} s of work on Spot")
    # Standard output is the answer alone, for whoever pipes it.
    for line in _footnotes(job, answer, google, written):
        print(line, file=sys.stderr)
    if not written:
        print("Next: the same with --emit DIR writes the manifests, with --plot FILE.svg the picture", file=sys.stderr)


def _footnotes(job: Job, answer: Answer, google: list[str] | None, written: list[Path]) -> list[str]:
    world, limits = answer.world, answer.limits
    waits = world.waits(job, answer.region)
    notes = [
        basis(world.prices),
        f"churn: {world.churn.per_hour:.3g} a node-hour ({world.churn.basis}); flex-start wait: median"
        f" {world.flex_waits.median_first_h * 60:.0f} min ({world.flex_waits.source})",
    ]
    # Traces of one's own replace the public record; what that is followed from is worth saying.
    if world.recorded is None or waits.zones == tuple(t.name for t in world.recorded.traces):
        notes.append(
            f"Spot is there at once {waits.at_once:.0%} of the time for {1 if job.batch else job.nodes} nodes, else after"
            f" {waits.mean_wait_h:.1f} h on average ({waits.source})"
        )
        notes += _hours(job)
    if world.recorded is not None:
        notes.append(f"Spot follows {len(world.recorded.hours)} recorded traces of when a request was granted")
    if limits is not None:
        notes.append(
            f"Spot stops paying against {limits.against.value}: churn {_limit(limits.churn_per_hour, '/h')}, or restart"
            f" {_limit(limits.restart_h * 60, ' min')}, or checkpoint {_limit(limits.checkpoint_h * 3600, ' s')}"
        )
    if dates := price_dates(job, answer):
        notes.append("prices as of: " + ", ".join(f"{name} {date or 'undated'}" for name, date in dates.items()))
    if found := spot_range(job, answer):
        low, high, band = found
        notes.append(f"Spot's price may change once a month; it is {band}: here {_usd(low)} to {_usd(high)} an hour")
    if drift := world.prices.spot_drift(job.accelerator):
        notes.append(f"Spot's price of this GPU has moved {drift}")
    if answer.elsewhere:
        near = ", ".join(f"{r} {p} {_usd(usd)}" for r, p, usd in answer.elsewhere[:SHOWN_REGIONS])
        more = len(answer.elsewhere) - SHOWN_REGIONS
        notes.append(f"elsewhere: {near}" + (f", and {more} dearer regions" if more > 0 else ""))
    if note := world.prices.note(job.accelerator, answer.region):
        notes.append(f"note: {note}")
    notes += [f"Google, {answer.region}: {line}" for line in google or ()]
    notes += [f"wrote {path}" for path in written]
    return notes


def _hours(job: Job) -> list[str]:
    """When to start; a job of days meets all hours."""
    found = rhythm(job)
    if found is None:
        return []
    best, worst = found.shares[found.best], found.shares[found.worst]
    return [
        f"by the hour: most often at {found.best:02}:00 UTC ({best:.0%} of moments), least at {found.worst:02}:00 ({worst:.0%}),"
        " over all recorded zones; no difference between weekdays holds"
    ]


def _doubts(job: Job, answer: Answer) -> list[str]:
    """What the one choice hides: its equals, its assumption, and what the manifests do instead."""
    chosen, other = answer.chosen, answer.tie
    lines = [_interval(job, chosen) + _usd_by_week(chosen)]
    if answer.data_in:
        lines.append(_bucket(answer))
    if answer.committed is not None:
        lines.append(_committed(job, answer.committed, chosen))
    if answer.as_elastic:
        lines.append(_as_elastic(job, answer.as_elastic))
    if job.items:
        each = (f"{o.placement.value} ({o.policy}) {_usd(per_1000(job, o))}" for o in answer.options if not o.refused)
        lines.append("1,000 items: " + ", ".join(each))
    if other is not None:
        apart = other.mean_usd - chosen.mean_usd
        lines.append(
            f"tie: {other.placement.value} ({other.policy}) costs {_usd(abs(apart))} {'more' if apart > 0 else 'less'},"
            f" within the noise or {SAME_USD:.0%}"
        )
    if answer.emitted is not chosen:
        emitted = answer.emitted
        lines.append(
            f"{chosen.policy} needs {chosen.carried_out_by}: by itself the ComputeClass of --emit does"
            f" `{emitted.policy}` for {_usd(emitted.mean_usd)} instead of {_usd(chosen.mean_usd)}"
        )
    # The row without on-demand is the other end: how late if none is ever granted.
    spot = next((o for o in answer.options if o.placement is Placement.SPOT and not o.refused), None)
    if chosen.placement is Placement.HYBRID and math.isfinite(job.deadline_h) and spot is not None:
        lines.append(f"if on-demand is never granted, {_by_week(answer.world, spot)}")
    return lines


def _usd_by_week(chosen: Option) -> str:
    """Of the next week the interval, which is of other starts in the same two, knows nothing."""
    if chosen.usd_range is None:
        return ""
    low, high = chosen.usd_range
    return f"; in single weeks of single recorded zones {_usd(low)} to {_usd(high)}"


def _by_week(world: World, spot: Option) -> str:
    """The range with its middle: least and most alone hide that most weeks may be good ones."""
    if spot.late_weeks is None:
        return f"{spot.late:.0%} late"
    low, high = np.percentile(spot.late_weeks, [25, 75])
    return f"{spot.late_text} late over {weeks.basis(world)}; in the middle half of them {low:.0%} to {high:.0%}"


def _bucket(answer: Answer) -> str:
    """Where the bucket has to be for this answer."""
    if answer.region == answer.data_in:
        return f"the data stays in {answer.data_in}"
    return (
        f"first copy the data from {answer.data_in} to a bucket in {answer.region}: {_usd(answer.move.usd)} and"
        f" {answer.move.hours:.1f} h, contained in every row"
    )


def _as_elastic(job: Job, rows: tuple[Option, ...]) -> str:
    """With the hours and dollars of each, as in the table."""
    each = (
        f"{row.policy}: {_usd(row.mean_usd)}, done after {row.finish_at(50):.1f} h, at p95 {row.finish_at(95):.1f} h,"
        f" {row.late_text} late"
        for row in rows
    )
    return f"if each node holds the whole state, --nodes {job.nodes // 2}..{job.nodes}: {'; '.join(each)}"


def _committed(job: Job, committed: Commitment, chosen: Option) -> str:
    """Both ways to say it: for this job alone, and for a team that has more such work."""
    even_h = committed.even_h(job, chosen)
    head = f"committed: {_usd(committed.usd(job))} for {committed.terms(job)} x {committed.term_h / 24:g} d of {job.gpus} GPUs, used or not"
    if even_h > committed.term_h:
        return f"{head}; dearer than {chosen.policy} even if the GPUs never rest"
    return f"{head}; cheaper than {chosen.policy} from {even_h:,.0f} h of such work in each {committed.term_h:,.0f} h"


def _interval(job: Job, chosen: Option) -> str:
    low, high = chosen.usd_interval
    text = f"mean cost {_usd(chosen.mean_usd)}, 95 % interval {_usd(low)} to {_usd(high)}"
    if math.isfinite(job.deadline_h):
        least, most = chosen.late_interval or chosen.late_range or (chosen.late, chosen.late)
        text += f"; late {least:.1%} to {most:.1%}"
    # The rows' p50 and p95 are of single runs; this is what other starts would make of the mean.
    return f"{text} ({len(chosen.usd):,} starts)"


def _usd(usd: float) -> str:
    """Cents below ten dollars: a short job costs no `$0`."""
    if usd < 0.01:
        return f"${usd:.2g}" if usd >= 1e-4 else "under $0.0001"
    return f"${usd:,.0f}" if usd >= 10 else f"${usd:.2f}"


def _row(option: Option, chosen: bool) -> tuple[str, ...]:
    if option.refused:
        return (option.placement.value, option.policy, "-", "-", "-", "-", "-", "-", "-", option.refused)
    return (
        option.placement.value,
        option.policy,
        f"{option.usd_per_hour:.2f}{'*' if option.inferred else ''}",
        f"{option.usd_at(50):,.2f}",
        f"{option.usd_at(95):,.2f}",
        f"{option.finish_at(50):.1f}",
        f"{option.finish_at(95):.1f}",
        option.late_text,
        f"{option.evictions:.1f}",
        "<- chosen" if chosen else "",
    )


def _limit(value: float, unit: str) -> str:
    return "any" if value == 0.0 else "none" if math.isinf(value) else f"above {value:.3g}{unit}"
