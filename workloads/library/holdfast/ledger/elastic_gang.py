"""An elastic gang in the ledger: a lane for each of its places, and what they add up to.

All places do the same at the same time, but for those without a node while the others work. So one
lane is swept, and the sizes of the gang are laid over it: cost and memory follow the events, never
the places times the events.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, pairwise, zip_longest

from holdfast.ledger.account import GangSize
from holdfast.ledger.processes import ProcessRun
from holdfast.ledger.timeline import STATES, LaneTimeline, Span, State

# Each is a lane; a line may hold any number.
MAX_PLACES = 1024


def gang_sizes(leads: Sequence[ProcessRun]) -> list[GangSize]:
    """How many nodes an elastic gang worked on, and until when; of a rigid one nothing."""
    resized = sorted(
        ((e, run.ends_us) for run in leads for e in run.of("resized")),
        key=lambda found: found[0].t_us,
    )
    found: list[GangSize] = []
    for (event, ends_us), after in zip_longest(resized, resized[1:]):
        nodes, places = (
            min(MAX_PLACES, int(event.fields.get(name) or 0)) for name in ("nodes", "of")
        )
        until = min(ends_us, after[0].t_us) if after else ends_us
        if 0 < nodes <= places and event.t_us < until:
            found.append(GangSize(event.t_us, until, nodes, places))
    return found


def below_size_since_us(sizes: Sequence[GangSize]) -> int | None:
    """Since when the gang has had fewer nodes than places, whichever were missing; None: it has
    all.
    """
    since: int | None = None
    for size in reversed(sizes):
        if size.nodes == size.places:
            break
        since = size.begin_us
    return since


def node_time_us(
    lane: Sequence[Span], sizes: Iterable[GangSize], places: int
) -> Mapping[State, int]:
    """The time of all places by state. `lane`: that of a place which always had a node."""
    sums: Counter[State] = Counter()
    for span in lane:
        sums[span.state] += span.length_us * places
    for span, size in _overlaps(lane, sizes):
        without_us = span.length_us * (places - size.nodes)
        sums[span.state] -= without_us
        sums[State.DEGRADED] += without_us
    return {state: sums[state] for state in STATES}


def lanes_of(lane: Sequence[Span], sizes: Sequence[GangSize], places: int) -> Iterable[Span]:
    """The spans of every place, place by place. Those that the same sizes leave without a node are
    swept once.
    """
    edges = sorted({0, places, *(size.nodes for size in sizes if size.nodes < places)})
    for first, end in pairwise(edges):
        spans = _without_a_node(lane, [size for size in sizes if size.nodes <= first])
        for place in range(first, end):
            yield from (span._replace(lane=place) for span in spans)


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
    """Each piece of a span within a size, with that size. Neither the spans nor the sizes overlap."""
    number = 0
    for size in sizes:
        while number < len(lane) and lane[number].end_us <= size.begin_us:
            number += 1
        for span in islice(lane, number, None):
            if span.begin_us >= size.end_us:
                break
            yield (
                span._replace(
                    begin_us=max(span.begin_us, size.begin_us), end_us=min(span.end_us, size.end_us)
                ),
                size,
            )
