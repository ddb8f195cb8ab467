"""Defines one value of one metric at one moment."""

from collections.abc import Container
from dataclasses import dataclass

from holdfast.vocabulary.job_identity import JobIdentity
from holdfast.vocabulary.telemetry import METRICS

OTHER = "other"


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
    """Returns the labels of series about a run; without an index if the job is one run."""
    fields = {name: str(value) for name, value in run.fields().items()}
    return {"namespace": run.namespace} | fields


def sample(metric: str, value: float, **labels: str) -> Sample:
    assert metric in METRICS, metric
    return Sample(metric, float(value), tuple(sorted(labels.items())))


def bound_label(value: str, values: Container[str]) -> str:
    """Returns a label's value if it is one of `values`, else OTHER.

    Anybody who may create a pod chooses its selector, and each value is a series kept for years.
    """
    return value if value in values else OTHER
