"""How long waits lasted that are over, counted in bands by whatever a metric names.

report/cloud.py reads the bands back. A counter for each band, so that any window has its own
percentiles.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.contract.telemetry import WAIT_BANDS_S
from holdfast.exporter.sample import Sample, sample


@dataclass(slots=True)
class Waits:
    metric: str
    labels: tuple[str, ...]
    counts: Counter[tuple[str, ...]] = field(default_factory=Counter[tuple[str, ...]])
    """Values of the labels and the band -> waits."""

    def ended(self, seconds: float, *values: str) -> None:
        band = WAIT_BANDS_S[max(0, bisect_right(WAIT_BANDS_S, seconds) - 1)]
        self.counts[(*values, str(band))] += 1

    def samples(self) -> Iterable[Sample]:
        for values, count in self.counts.items():
            yield sample(self.metric, count, **dict(zip((*self.labels, "wait_s"), values, strict=True)))
