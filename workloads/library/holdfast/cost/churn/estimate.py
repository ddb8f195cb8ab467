"""Estimates how often nodes are preempted, by group and by age: events over exposure.

Pure. A node that stops for another reason, or still runs, was at risk too: it adds exposure and no
event (censored). Planned ends are no preemptions.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.ledger.events import Event

HOUR_US = 3_600_000_000
PREEMPTED = frozenset({"preempted", "PreemptionEvent", "Eviction"})
# Young nodes die more often: published lifetimes fall by a factor of six within the first hours.
AGE_BANDS_H = (0.0, 0.25, 1.0, 3.0, 6.0, 12.0, math.inf)


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Group:
    pool: str
    machine_type: str
    zone: str

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> "Group":
        """Reads the fields of an event line, or the labels of a series."""
        return cls(
            pool=str(fields.get("pool", "")),
            machine_type=str(fields.get("machine_type", "")),
            zone=str(fields.get("zone", "")),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposure:
    """Preemptions and node-hours, which may be added up."""

    events: float = 0.0
    hours: float = 0.0

    def __add__(self, other: "Exposure") -> "Exposure":
        return Exposure(events=self.events + other.events, hours=self.hours + other.hours)

    @property
    def per_hour(self) -> float | None:
        """The rate; None if nothing was watched, because it is unknown then, not zero."""
        return self.events / self.hours if self.hours > 0 else None

    def interval(self, confidence: float = 0.9) -> tuple[float, float]:
        """Returns an interval of the rate per node-hour, exact for a Poisson count.

        Without events it has an upper bound only.
        """
        if self.hours <= 0:
            return 0.0, math.inf
        if self.events <= 0:
            # Without events the interval is one-sided: at 95 % the bound is 3 / hours.
            high = _gamma_quantile(confidence, self.events + 1)
            return 0.0, high / self.hours
        tail = (1 - confidence) / 2
        low = _gamma_quantile(tail, self.events)
        high = _gamma_quantile(1 - tail, self.events + 1)
        return low / self.hours, high / self.hours


Ages = Sequence[tuple[float, float, Exposure]]
"""Lower hours, upper hours and exposure of each band of node age."""


@dataclass(frozen=True, slots=True)
class NodeLifetime:
    group: Group
    begin_us: int
    end_us: int
    preempted: bool
    begin_age_us: int = 0
    """Its age when the watch began: it was at risk before, but its loss would not have counted."""


def lifetimes(events: Iterable[Event], now_us: int) -> list[NodeLifetime]:
    """Returns one lifetime for each node_up or node_down line.

    A node that is still up is at risk until `now_us`.
    """
    up: dict[str, Event] = {}
    lives: list[NodeLifetime] = []
    for event in events:
        node = str(event.fields.get("node", ""))
        if event.type == "node_up":
            up.setdefault(node, event)  # a watcher that starts again writes every node again
        elif event.type == "node_down":
            lives.append(_end_lifetime(up.pop(node, None), event))
    for node_up in up.values():
        lives.append(_continue_lifetime(node_up, now_us))
    return lives


def _end_lifetime(node_up: Event | None, node_down: Event) -> NodeLifetime:
    preempted = str(node_down.fields.get("reason", "")) in PREEMPTED
    if node_up is None:
        # The watcher was down when the node came up. The age in this line gives its creation time.
        return NodeLifetime(
            Group.of(node_down.fields),
            begin_us=node_down.t_us - _age_us(node_down),
            end_us=node_down.t_us,
            preempted=preempted,
        )
    return NodeLifetime(
        Group.of(node_up.fields),
        begin_us=node_up.t_us,
        end_us=node_down.t_us,
        preempted=preempted,
        begin_age_us=_age_us(node_up),
    )


def _continue_lifetime(node_up: Event, now_us: int) -> NodeLifetime:
    return NodeLifetime(
        Group.of(node_up.fields),
        begin_us=node_up.t_us,
        end_us=max(now_us, node_up.t_us),
        preempted=False,
        begin_age_us=_age_us(node_up),
    )


def _age_us(event: Event) -> int:
    return round(float(event.fields.get("seconds") or 0) * 1e6)


def by_group(lives: Sequence[NodeLifetime]) -> dict[Group, Exposure]:
    sums: dict[Group, Exposure] = defaultdict(Exposure)
    for life in lives:
        hours = (life.end_us - life.begin_us) / HOUR_US
        sums[life.group] += Exposure(events=float(life.preempted), hours=hours)
    return dict(sorted(sums.items()))


def by_age(lives: Sequence[NodeLifetime]) -> Ages:
    rows: list[tuple[float, float, Exposure]] = []
    for low, high in pairwise(AGE_BANDS_H):
        total = Exposure()
        for life in lives:
            total += _find_exposure_in_band(life, low, high)
        rows.append((low, high, total))
    return rows


def _find_exposure_in_band(life: NodeLifetime, low_h: float, high_h: float) -> Exposure:
    """Returns what a node adds to an age band.

    Hours in the band before the watch began are no exposure: a loss would not have counted then.
    """
    begin_h = life.begin_age_us / HOUR_US
    end_h = begin_h + (life.end_us - life.begin_us) / HOUR_US
    died_here = life.preempted and low_h <= end_h < high_h
    hours = min(end_h, high_h) - max(begin_h, low_h)
    return Exposure(events=float(died_here), hours=max(0.0, hours))


def _gamma_quantile(p: float, shape: float) -> float:
    """Inverts the regularized lower incomplete gamma function.

    Bisection is exact enough, and needs no dependency.
    """
    low = 0.0
    high = shape + 10 * math.sqrt(shape) + 20
    for _ in range(80):
        middle = (low + high) / 2
        if _gamma_share(shape, middle) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _gamma_share(shape: float, x: float) -> float:
    """Returns P(shape, x) by its series, which converges for every x."""
    if x <= 0:
        return 0.0
    term = total = 1 / shape
    n = shape
    while term > total * 1e-14:
        n += 1
        term *= x / n
        total += term
    log_factor = -x + shape * math.log(x) - math.lgamma(shape)
    return min(1.0, total * math.exp(log_factor))
