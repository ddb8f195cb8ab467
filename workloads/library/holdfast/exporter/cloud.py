"""Writes samples to Cloud Monitoring, within what its API takes.

Guarantee: at most 200 series a call, one point a series, never an older or a too early point; a
call that fails for a passing reason is tried again until the next pass is due, then given up and
counted.
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
from holdfast.controllers.controller_log import logger
from holdfast.controllers.sample import Sample
from holdfast.vocabulary.telemetry import METRIC_PREFIX

LOG = logger("write-metrics")
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
    _last_s: dict[Series, float] = field(default_factory=dict[Series, float])
    _began_s: dict[Series, float] = field(default_factory=dict[Series, float])
    _value: dict[Series, float] = field(default_factory=dict[Series, float])
    _resource: Any = field(init=False)

    def __post_init__(self) -> None:
        labels = {
            "project_id": self.project,
            "location": self.location,
            "cluster_name": self.cluster,
        }
        self._resource = monitored_resource_pb2.MonitoredResource(type="k8s_cluster", labels=labels)

    def write(self, samples: Iterable[Sample]) -> int:
        """How many series were taken."""
        now = self.clock()
        unique = {s.series: s for s in samples}
        self._forget(set(unique))
        due = [s for key, s in unique.items() if now - self._last_s.get(key, 0.0) >= MIN_GAP_S]
        taken = 0
        for first in range(0, len(due), MAX_SERIES):
            taken += self._send(due[first : first + MAX_SERIES], now)
        return taken

    def _send(self, batch: Sequence[Sample], now: float) -> int:
        series = [self._series(s, now) for s in batch]
        retry: Any = Retry(
            predicate=if_exception_type(*TRANSIENT),
            initial=0.2,
            maximum=3.0,
            multiplier=2.0,
            timeout=self.patience_s,
        )
        try:
            self.client.create_time_series(
                name=f"projects/{self.project}",
                time_series=series,
                retry=retry,
                timeout=self.patience_s,
            )
        except exceptions.GoogleAPIError as error:
            self.refused += len(batch)
            LOG.warning("cloud monitoring refused %d series: %s", len(batch), error)
            return 0
        for one in batch:
            self._last_s[one.series] = now
        return len(batch)

    def _series(self, one: Sample, now: float) -> Any:
        """The message itself: through its wrapper a pass over thousands of series takes ten times
        as long.
        """
        series = _MESSAGE(unit="s" if "seconds" in one.metric else "1")
        series.metric.type = f"{METRIC_PREFIX}/{one.metric}"
        series.metric.labels.update(one.labels)
        series.resource.CopyFrom(self._resource)
        point = series.points.add()
        point.interval.end_time.FromNanoseconds(_nanos(now))
        if one.cumulative:
            series.metric_kind = metric_pb2.MetricDescriptor.MetricKind.CUMULATIVE
            point.interval.start_time.FromNanoseconds(_nanos(self._start(one, now)))
            point.value.int64_value = int(one.value)
        else:
            point.value.double_value = one.value
        return series

    def _start(self, one: Sample, now: float) -> float:
        """A counter that fell has begun again: its start moves to just before now."""
        before = self._value.get(one.series)
        if before is None or one.value < before:
            self._began_s[one.series] = now - 0.001
        self._value[one.series] = one.value
        return self._began_s[one.series]

    def reset_counters(self) -> None:
        """Another exporter has written these series meanwhile."""
        self._began_s.clear()
        self._value.clear()

    def _forget(self, alive: set[Series]) -> None:
        for held in (self._last_s, self._began_s, self._value):
            for key in held.keys() - alive:
                del held[key]


def _nanos(t: float) -> int:
    return round(t * 1e9)
