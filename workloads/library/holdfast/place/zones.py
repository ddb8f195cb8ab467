"""Several zones as one capacity: a job that loses its machines goes on in another zone instead of waiting.

All zones of a region share prices and a regional bucket, so a move costs one restart and nothing else. The gang is
in one zone at a time, because its machines talk at every step.
"""

# Why it is so: infra/decisions/0057.
import numpy as np

from holdfast.contract.errors import InputError
from holdfast.place.runs import Bools, Ints
from holdfast.place.traces import Trace


def follow(ups: Bools, gap_h: float, *, foresight: bool = False) -> Trace:
    """One recording out of many: in a zone until it ends there, then in one that is up; waiting where none is.

    ups: zones by ticks. Without foresight the zone that has been up longest is taken: what has lasted is likely to
    last. With it, the one that will last longest, which no policy can beat in moves.
    """
    since, until = _ran(ups), _ran(ups[:, ::-1])[:, ::-1]
    rank = until if foresight else since
    up, moved = np.zeros((2, ups.shape[1]), bool)
    tick, lost = 0, False
    while tick < len(up):
        there = int(np.argmax(np.where(ups[:, tick], rank[:, tick], -1)))
        stays = int(until[there, tick])
        up[tick : tick + stays] = True
        # Machines were lost and others stand ready: an eviction without a wait.
        moved[tick] = lost and stays > 0
        lost, tick = stays > 0, tick + max(stays, 1)
    return Trace(name="any zone", gap_h=gap_h, up=up, moved=moved)


def together(traces: list[Trace]) -> Trace:
    """The recordings of several zones, begun at the same time, over the ticks that all of them have."""
    if len({trace.gap_h for trace in traces}) > 1:
        raise InputError(
            "zones recorded in different steps", got=", ".join(t.name for t in traces), allowed="one step for all",
            fix="leave --any-zone out, or give only recordings made side by side",
        )  # fmt: skip
    # Recorders stop at different moments; a zone without a tick is neither up nor down.
    shortest = min(len(trace.up) for trace in traces)
    return follow(np.stack([trace.up[:shortest] for trace in traces]), traces[0].gap_h)


def _ran(ups: Bools) -> Ints:
    """Ticks since each zone came up, this one counted; 0 while it is down."""
    ticks = np.arange(1, ups.shape[1] + 1)
    return ticks - np.maximum.accumulate(np.where(ups, 0, ticks), axis=1)
