"""Counts how long Spot nodes were at risk and how many were lost.

The counters are kept by pool, machine type, zone and age; `holdfast place churn --project` reads
them back. A node counts from when it is first watched until it is reclaimed or deleted, so both
counters cover the same time.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.controllers.cluster_objects import Node
from holdfast.controllers.sample import Sample, sample
from holdfast.cost.churn.estimate import AGE_BANDS_H

Key = tuple[str, str, str, str]


@dataclass(slots=True)
class Risk:
    seconds: dict[Key, float] = field(default_factory=dict)
    losses: dict[Key, int] = field(default_factory=dict)
    _until_s: dict[str, float] = field(default_factory=dict)
    """Node -> moment up to which its time is counted."""

    def count_time(self, name: str, node: Node, now_s: float) -> None:
        since_s = self._until_s.setdefault(name, now_s)
        # A clock that stepped back must not count time twice.
        if now_s > since_s:
            key = _make_key(node, now_s)
            earlier_s = self.seconds.get(key, 0.0)
            self.seconds[key] = earlier_s + now_s - since_s
            self._until_s[name] = now_s

    def count_end(self, name: str, node: Node, now_s: float) -> None:
        if name in self._until_s:
            self.count_time(name, node, now_s)
            del self._until_s[name]

    def count_loss(self, name: str, node: Node, now_s: float) -> None:
        self.count_end(name, node, now_s)
        key = _make_key(node, now_s)
        self.losses[key] = self.losses.get(key, 0) + 1

    def reset_counters(self) -> None:
        self.seconds.clear()
        self.losses.clear()

    def samples(self) -> Iterable[Sample]:
        """Yields both counters for every key. Without losses the series is 0, not absent."""
        for key in self.seconds.keys() | self.losses.keys():
            pool, machine_type, zone, age_h = key
            labels = {
                "pool": pool,
                "machine_type": machine_type,
                "zone": zone,
                "age_h": age_h,
            }
            yield sample("spot_node_seconds_total", self.seconds.get(key, 0.0), **labels)
            yield sample("spot_node_losses_total", self.losses.get(key, 0), **labels)


def _make_key(node: Node, now_s: float) -> Key:
    age_h = 0.0
    if node.born_s:
        age_h = max(0.0, now_s - node.born_s) / 3600
    band = bisect_right(AGE_BANDS_H, age_h) - 1
    return (
        node.pool,
        node.machine_type,
        node.zone,
        f"{AGE_BANDS_H[band]:g}",
    )
