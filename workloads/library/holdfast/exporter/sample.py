"""One value of one metric at one moment, and waits counted in bands."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.contract.job_identity import JobIdentity
from holdfast.contract.telemetry import METRICS, WAIT_BANDS_S


@dataclass(frozen=True, slots=True)
class Sample:
    metric: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def series(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        return self.metric, self.labels

    @property
    def cumulative(self) -> bool:
        return self.metric.endswith("_total")


def run_labels(run: JobIdentity) -> dict[str, str]:
    """Of the series about a run; without an index, where the job is one run."""
    return {"namespace": run.namespace} | {name: str(value) for name, value in run.fields().items()}


def sample(metric: str, value: float, **labels: str) -> Sample:
    assert metric in METRICS, metric
    return Sample(metric, float(value), tuple(sorted(labels.items())))


@dataclass(slots=True)
class Waits:
    """How long waits lasted that are over. A counter for each band, so that any window has its own percentiles."""

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
