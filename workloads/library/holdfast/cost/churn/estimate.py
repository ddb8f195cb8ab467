"""How often nodes are preempted: events over exposure, by what the node is and how old it was.

Pure. A node that stops for another reason, or still runs, was at risk too: it adds exposure and no
event (censored). Planned ends are no preemptions.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.ledger.events import Event
from holdfast.support.errors import InputError
from holdfast.support.values import duration_s

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
        """By the fields of an event line, or the labels of a series."""
        return cls(**{name: str(fields.get(name, "")) for name in ("pool", "machine_type", "zone")})


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposure:
    """Preemptions and node-hours; add them up freely."""

    events: float = 0.0
    hours: float = 0.0

    def __add__(self, other: "Exposure") -> "Exposure":
        return Exposure(events=self.events + other.events, hours=self.hours + other.hours)

    @property
    def per_hour(self) -> float | None:
        """None where nothing was watched: unknown, not zero."""
        return self.events / self.hours if self.hours > 0 else None

    def interval(self, confidence: float = 0.9) -> tuple[float, float]:
        """Of the rate per node-hour, exact for a Poisson count; no events leaves an upper bound."""
        if self.hours <= 0:
            return 0.0, math.inf
        tail = (1 - confidence) / 2
        low = _gamma_quantile(tail, self.events) if self.events > 0 else 0.0
        # Without an event all of the doubt is above: three node-lives at 95 %.
        high = _gamma_quantile(1 - tail if self.events > 0 else confidence, self.events + 1)
        return low / self.hours, high / self.hours


Ages = Sequence[tuple[float, float, Exposure]]
"""(from hours, to hours, exposure) for each band of node age."""


@dataclass(frozen=True, slots=True)
class NodeLifetime:
    group: Group
    begin_us: int
    end_us: int
    preempted: bool
    begin_age_us: int = 0
    """How old it was when the watch began: it was at risk before, but a loss would not have been
    seen.
    """


def lifetimes(events: Iterable[Event], now_us: int) -> list[NodeLifetime]:
    """One for each node_up or node_down; a node that is still up is at risk until `now_us`."""
    up: dict[str, Event] = {}
    found: list[NodeLifetime] = []
    for event in events:
        node = str(event.fields.get("node", ""))
        if event.type == "node_up":
            up.setdefault(node, event)  # a watcher that starts again writes every node again
        elif event.type == "node_down":
            # Without its node_up line, as with a watcher that was down, the age in this line gives
            # the birth.
            born = up.pop(node, None)
            taken = str(event.fields.get("reason", "")) in PREEMPTED
            if born:
                begin_us, age_us = (born.t_us, _age_us(born))
            else:
                begin_us, age_us = (event.t_us - _age_us(event), 0)
            found.append(
                NodeLifetime(Group.of((born or event).fields), begin_us, event.t_us, taken, age_us)
            )
    for born in up.values():
        found.append(
            NodeLifetime(
                Group.of(born.fields), born.t_us, max(now_us, born.t_us), False, _age_us(born)
            )
        )
    return found


def _age_us(event: Event) -> int:
    return round(float(event.fields.get("seconds") or 0) * 1e6)


def by_group(found: Sequence[NodeLifetime]) -> dict[Group, Exposure]:
    sums: dict[Group, Exposure] = defaultdict(Exposure)
    for life in found:
        sums[life.group] += Exposure(
            events=float(life.preempted), hours=(life.end_us - life.begin_us) / HOUR_US
        )
    return dict(sorted(sums.items()))


def by_age(found: Sequence[NodeLifetime]) -> Ages:
    rows: list[tuple[float, float, Exposure]] = []
    for low, high in pairwise(AGE_BANDS_H):
        total = Exposure()
        for life in found:
            young_h = life.begin_age_us / HOUR_US
            age_h = young_h + (life.end_us - life.begin_us) / HOUR_US
            died_here = life.preempted and low <= age_h < high
            # Hours in the band before the watch began are no exposure: a loss there would not have
            # been seen.
            total += Exposure(
                events=float(died_here), hours=max(0.0, min(age_h, high) - max(young_h, low))
            )
        rows.append((low, high, total))
    return rows


def span_seconds(text: str) -> float:
    """Of `--since`."""
    seconds = duration_s(text, "mhd")
    if not seconds:
        allowed = "a number and d, h or m, as 7d, 12h or 30m"
        raise InputError(
            "--since is no span of time",
            got=text,
            allowed=allowed,
            fix="write --since 7d",
        )
    return seconds


def _gamma_quantile(p: float, shape: float) -> float:
    """Inverse of the regularised lower incomplete gamma function, by bisection: exact enough, no
    dependency.
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
    """P(shape, x) by its series, which converges for every x and is fast for those used here."""
    if x <= 0:
        return 0.0
    term = total = 1 / shape
    n = shape
    while term > total * 1e-14:
        n += 1
        term *= x / n
        total += term
    return min(1.0, total * math.exp(-x + shape * math.log(x) - math.lgamma(shape)))
