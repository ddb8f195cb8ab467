"""Writes samples to Cloud Monitoring within the limits of its API.

Guarantee: at most 200 series a call, one point a series, never an older or too early point. A call
that fails for a transient reason is retried until the next pass is due, then given up and counted,
as are the calls after it.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.api import metric_pb2, monitored_resource_pb2
from google.api_core import exceptions
from google.api_core.retry import Retry, if_exception_type
from google.cloud import monitoring_v3

from holdfast.clients.cloud_api import TRANSIENT
from holdfast.controllers.controller_log import get_logger
from holdfast.controllers.sample import Sample
from holdfast.vocabulary.telemetry import METRIC_PREFIX

LOG = get_logger("write-metrics")
_MESSAGE: Any = monitoring_v3.TimeSeries.pb()
MAX_SERIES = 200
# The API refuses points of one series that are closer than this.
MIN_GAP_S = 5.0
Series = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class CloudWriter:
    client: monitoring_v3.MetricServiceClient
    project: str
    location: str
    cluster: str
    patience_s: float = 10.0
    clock: Callable[[], float] = time.time
    refused: int = 0
    """Series that the API did not take; logged each pass."""
    _last_s: dict[Series, float] = field(default_factory=dict)
    _start_s: dict[Series, float] = field(default_factory=dict)
    _value: dict[Series, float] = field(default_factory=dict)
    _resource: Any = field(init=False)

    def __post_init__(self) -> None:
        labels = {
            "project_id": self.project,
            "location": self.location,
            "cluster_name": self.cluster,
        }
        self._resource = monitored_resource_pb2.MonitoredResource(type="k8s_cluster", labels=labels)

    def write(self, samples: Iterable[Sample]) -> int:
        """Writes the samples that are due. Returns how many series the API took."""
        now = self.clock()
        unique = {sample.series: sample for sample in samples}
        self._forget_all_but(set(unique))
        due: list[Sample] = []
        for series, sample in unique.items():
            if now - self._last_s.get(series, 0.0) >= MIN_GAP_S:
                due.append(sample)
        count = 0
        for first in range(0, len(due), MAX_SERIES):
            batch = due[first : first + MAX_SERIES]
            try:
                self._send(batch, now)
            except exceptions.GoogleAPIError as error:
                is_away = isinstance(error, (exceptions.RetryError, *TRANSIENT))
                if is_away:
                    # Each of the other calls would wait as long, and the lease would end.
                    batch = due[first:]
                self.refused += len(batch)
                LOG.warning("cloud monitoring refused %d series: %s", len(batch), error)
                if is_away:
                    break
            else:
                count += len(batch)
        return count

    def _send(self, batch: Sequence[Sample], now: float) -> None:
        """Raises GoogleAPIError if the API did not take the series."""
        messages = [self._build_message(sample, now) for sample in batch]
        retry: Any = Retry(
            predicate=if_exception_type(*TRANSIENT),
            initial=0.2,
            maximum=3.0,
            multiplier=2.0,
            timeout=self.patience_s,
        )
        self.client.create_time_series(
            name=f"projects/{self.project}",
            time_series=messages,
            retry=retry,
            timeout=self.patience_s,
        )
        for sample in batch:
            self._last_s[sample.series] = now

    def _build_message(self, sample: Sample, now: float) -> Any:
        """Builds the protobuf message itself.

        Its typed wrapper makes a pass over thousands of series ten times as slow.
        """
        message = _MESSAGE(unit="s" if "seconds" in sample.metric else "1")
        message.metric.type = f"{METRIC_PREFIX}/{sample.metric}"
        message.metric.labels.update(sample.labels)
        message.resource.CopyFrom(self._resource)
        point = message.points.add()
        point.interval.end_time.FromNanoseconds(_to_nanoseconds(now))
        if sample.cumulative:
            start = self._find_start(sample, now)
            message.metric_kind = metric_pb2.MetricDescriptor.MetricKind.CUMULATIVE
            point.interval.start_time.FromNanoseconds(_to_nanoseconds(start))
            point.value.int64_value = int(sample.value)
        else:
            point.value.double_value = sample.value
        return message

    def _find_start(self, sample: Sample, now: float) -> float:
        """Returns the start of a counter. One that fell was reset: it starts just before now."""
        series = sample.series
        before = self._value.get(series)
        if before is None or sample.value < before:
            self._start_s[series] = now - 0.001
        self._value[series] = sample.value
        return self._start_s[series]

    def reset_counters(self) -> None:
        """Starts all counters again, because another exporter wrote these series meanwhile."""
        self._start_s.clear()
        self._value.clear()

    def _forget_all_but(self, alive: set[Series]) -> None:
        for values in (self._last_s, self._start_s, self._value):
            for series in values.keys() - alive:
                del values[series]


def _to_nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
