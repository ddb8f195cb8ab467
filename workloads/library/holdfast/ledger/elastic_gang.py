"""Accounts for an elastic gang: a lane for each of its places, and what the lanes add up to.

All places do the same at the same time, except those without a node while the others work. So one
lane is swept, and the sizes of the gang are laid over it: cost and memory follow the events, never
the places times the events.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, pairwise

from holdfast.ledger.account import GangSize
from holdfast.ledger.events import Event
from holdfast.ledger.processes import ProcessRun
from holdfast.ledger.timeline import STATES, LaneTimeline, Span, State

# Each place is a lane, and a line may claim any number of places.
MAX_PLACES = 1024


def find_gang_sizes(leads: Sequence[ProcessRun]) -> list[GangSize]:
    """Returns on how many nodes an elastic gang worked, in time order; nothing for a rigid gang."""
    resizes: list[tuple[Event, int]] = []
    for run in leads:
        for event in run.select("resized"):
            resizes.append((event, run.ends_us))
    resizes.sort(key=lambda resize: resize[0].t_us)
    sizes: list[GangSize] = []
    for number, (event, end_us) in enumerate(resizes):
        if number + 1 < len(resizes):
            next_event, _ = resizes[number + 1]
            end_us = min(end_us, next_event.t_us)
        nodes = _read_count(event, "nodes")
        places = _read_count(event, "of")
        if 0 < nodes <= places and event.t_us < end_us:
            sizes.append(GangSize(event.t_us, end_us, nodes, places))
    return sizes


def _read_count(event: Event, name: str) -> int:
    return min(MAX_PLACES, int(event.fields.get(name) or 0))


def below_size_since_us(sizes: Sequence[GangSize]) -> int | None:
    """Returns the time since which the gang has lacked nodes for its places; None if it has all.

    The places that lack a node may change during that time.
    """
    since: int | None = None
    for size in reversed(sizes):
        if size.nodes == size.places:
            break
        since = size.begin_us
    return since


def sum_node_time_us(
    lane: Sequence[Span], sizes: Iterable[GangSize], places: int
) -> Mapping[State, int]:
    """Returns the time of all places by state. `lane` is that of a place that always had a node."""
    sums = dict.fromkeys(STATES, 0)
    for span in lane:
        sums[span.state] += span.length_us * places
    for span, size in _overlaps(lane, sizes):
        missing_us = span.length_us * (places - size.nodes)
        sums[span.state] -= missing_us
        sums[State.DEGRADED] += missing_us
    return sums


def draw_lanes(lane: Sequence[Span], sizes: Sequence[GangSize], places: int) -> Iterable[Span]:
    """Yields the spans of every place, place by place.

    Places that lack a node at the same sizes are swept together.
    """
    edges = {0, places}
    for size in sizes:
        if size.nodes < places:
            edges.add(size.nodes)
    for first, end in pairwise(sorted(edges)):
        smaller = [size for size in sizes if size.nodes <= first]
        spans = _without_a_node(lane, smaller)
        for place in range(first, end):
            for span in spans:
                yield span._replace(lane=place)


def _without_a_node(lane: Sequence[Span], sizes: Sequence[GangSize]) -> Sequence[Span]:
    if not (lane and sizes):
        return lane
    timeline = LaneTimeline(lane[0].begin_us, lane[-1].end_us, base=State.RESTARTING)
    for span in lane:
        timeline.add(span.begin_us, span.end_us, span.state)
    for size in sizes:
        timeline.add(size.begin_us, size.end_us, State.DEGRADED)
    return timeline.spans()


def _overlaps(lane: Sequence[Span], sizes: Iterable[GangSize]) -> Iterable[tuple[Span, GangSize]]:
    """Yields each piece of a span within a size. Neither the spans nor the sizes overlap."""
    number = 0
    for size in sizes:
        while number < len(lane) and lane[number].end_us <= size.begin_us:
            number += 1
        for span in islice(lane, number, None):
            if span.begin_us >= size.end_us:
                break
            piece = span._replace(
                begin_us=max(span.begin_us, size.begin_us),
                end_us=min(span.end_us, size.end_us),
            )
            yield piece, size
