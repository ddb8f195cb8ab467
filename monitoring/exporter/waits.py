"""How long pods of jobs waited for their node, counted in bands by capacity and accelerator.

report/cloud.py reads the bands back. A counter for each band, so that any window has its own
percentiles.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.contract.telemetry import WAIT_BANDS_S
from monitoring.exporter.sample import Sample, sample


@dataclass(slots=True)
class Waits:
    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])

    def ended(self, capacity: str, accelerator: str, seconds: float) -> None:
        band = WAIT_BANDS_S[max(0, bisect_right(WAIT_BANDS_S, seconds) - 1)]
        self.counts[capacity, accelerator, str(band)] += 1

    def samples(self) -> Iterable[Sample]:
        for (capacity, accelerator, wait_s), count in self.counts.items():
            yield sample("pod_waits_total", count, capacity=capacity, accelerator=accelerator, wait_s=wait_s)
