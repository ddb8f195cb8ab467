"""How long Spot nodes were at risk and how many were lost, by pool, machine type, zone and age.

`holdfast churn --project` reads the two counters back. A node counts from when it was first watched
until it is taken or gone, so both counters cover the same time.
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
    seconds: dict[Key, float] = field(default_factory=dict[Key, float])
    losses: dict[Key, int] = field(default_factory=dict[Key, int])
    _until_s: dict[str, float] = field(default_factory=dict[str, float])
    """Node -> up to when its time is counted."""

    def lived(self, name: str, node: Node, now_s: float) -> None:
        since_s = self._until_s.setdefault(name, now_s)
        if now_s > since_s:  # a clock that stepped back counts nothing twice
            key = _key(node, now_s)
            self.seconds[key] = self.seconds.get(key, 0.0) + now_s - since_s
            self._until_s[name] = now_s

    def left(self, name: str, node: Node, now_s: float) -> None:
        if name in self._until_s:
            self.lived(name, node, now_s)
            del self._until_s[name]

    def lost(self, name: str, node: Node, now_s: float) -> None:
        self.left(name, node, now_s)
        key = _key(node, now_s)
        self.losses[key] = self.losses.get(key, 0) + 1

    def reset_counters(self) -> None:
        self.seconds.clear()
        self.losses.clear()

    def samples(self) -> Iterable[Sample]:
        """Both counters for every key: a loss that did not happen must be a zero, not an absence."""
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


def _key(node: Node, now_s: float) -> Key:
    age_h = max(0.0, now_s - node.born_s) / 3600 if node.born_s else 0.0
    return (
        node.pool,
        node.machine_type,
        node.zone,
        f"{AGE_BANDS_H[bisect_right(AGE_BANDS_H, age_h) - 1]:g}",
    )
