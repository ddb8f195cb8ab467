"""What the cluster itself shows of Spot: of each GPU, whether it could be had, and since when. Pure.

A cluster sees only what somebody asks for. Spot counts as there while a Spot node of that GPU runs and no pod waits
for one; where nobody asks, it counts as gone, and a job stays on on-demand rather than pay for a guess.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.contract.machines import MACHINE_TYPES


@dataclass(slots=True)
class SpotSeen:
    since_s: dict[str, float] = field(default_factory=dict[str, float])
    """GPU -> since when it counts as there."""

    def look(self, machine_types: Iterable[str], waiting_for: Iterable[str], now_s: float) -> None:
        """machine_types: of the Spot nodes that run; waiting_for: GPUs of the pods that wait for a Spot node."""
        there = {MACHINE_TYPES[name].accelerator for name in machine_types if name in MACHINE_TYPES} - set(waiting_for)
        for gone in self.since_s.keys() - there:
            del self.since_s[gone]
        for accelerator in there:
            self.since_s.setdefault(accelerator, now_s)

    def up_for_h(self, accelerator: str, now_s: float) -> float | None:
        """None: not there."""
        since_s = self.since_s.get(accelerator)
        return None if since_s is None else (now_s - since_s) / 3_600
