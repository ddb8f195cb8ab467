"""One value of one metric at one moment. Made by cluster.py and jobs.py, sent by prometheus.py and cloud.py."""

from dataclasses import dataclass

from holdfast.contract.telemetry import METRICS


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


def sample(metric: str, value: float, **labels: str) -> Sample:
    assert metric in METRICS, metric
    return Sample(metric, float(value), tuple(sorted(labels.items())))
