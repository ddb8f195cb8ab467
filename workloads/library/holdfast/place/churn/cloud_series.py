"""Reads the exporter's own series back from Cloud Monitoring.

Guarantee: all points of the window or Unjudged; a half-read window is never returned.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions
from google.api_core.retry import Retry, if_exception_type
from google.cloud import monitoring_v3

from holdfast.clients.cloud_api import TRANSIENT
from holdfast.contract.errors import InputError, Unjudged
from holdfast.contract.telemetry import METRIC_PREFIX

# One page; the patience of a reader is for all its tries.
PAGE_S = 60.0
PERIOD_S = 3600


@dataclass(frozen=True, slots=True)
class Point:
    """What one series did within one period."""

    labels: dict[str, str]
    begin_s: int
    value: float
    cluster: str = ""
    """`<location>/<name>`: names repeat over locations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CloudReader:
    client: monitoring_v3.MetricServiceClient
    project: str
    cluster: str = ""
    """Name of the one to read; empty: all of the project."""
    patience_s: float = 60.0

    def increases(self, metric: str, begin_s: int, end_s: int) -> list[Point]:
        """By how much each counter grew in each hour; the cloud's aligner knows where a counter restarted."""
        wanted = f'metric.type = "{METRIC_PREFIX}/{metric}" AND resource.type = "k8s_cluster"'
        if self.cluster:
            wanted += f' AND resource.labels.cluster_name = "{self.cluster}"'
        request = monitoring_v3.ListTimeSeriesRequest(
            name=f"projects/{self.project}", filter=wanted,
            interval={"start_time": {"seconds": begin_s}, "end_time": {"seconds": end_s}},
            aggregation={"alignment_period": {"seconds": PERIOD_S}, "per_series_aligner": monitoring_v3.Aggregation.Aligner.ALIGN_DELTA},
        )  # fmt: skip
        retry: Any = Retry(predicate=if_exception_type(*TRANSIENT), initial=0.2, maximum=5.0, timeout=self.patience_s)
        try:
            pages = self.client.list_time_series(request, retry=retry, timeout=PAGE_S).pages
            return [point for page in pages for point in _points(page, metric)]
        except exceptions.GoogleAPIError as error:
            # A RetryError hides the fault that was tried again.
            raise self._unjudged(getattr(error, "cause", None) or error, metric) from error

    def _unjudged(self, error: Exception, metric: str) -> Unjudged:
        where = f"Cloud Monitoring of project {self.project}"
        match error:
            case exceptions.Forbidden() | exceptions.Unauthorized():
                return Unjudged(f"{where} may not be read: {error}; the reader needs roles/monitoring.viewer")
            case exceptions.ResourceExhausted():
                return Unjudged(f"{where}: the read quota is used up, try again in a minute: {error}")
            case exceptions.NotFound():
                return Unjudged(f"{where} has no series {METRIC_PREFIX}/{metric}: the exporter has never written it")
            case _:
                return Unjudged(f"{where} did not answer for {metric}: {error}")


def _points(page: monitoring_v3.ListTimeSeriesResponse, metric: str) -> Iterable[Point]:
    if page.execution_errors:
        faults = "; ".join(error.message for error in page.execution_errors)
        raise Unjudged(f"Cloud Monitoring could not read all of {metric}: {faults}")
    for series in page.time_series:
        labels, at = dict(series.metric.labels), series.resource.labels
        cluster = f"{at['location']}/{at['cluster_name']}"
        for point in series.points:
            # A double of 0 and an unset one read the same, so the one that is set counts.
            value = float(point.value.double_value or point.value.int64_value)
            end: Any = point.interval.end_time  # a datetime, whatever the client's stubs declare
            yield Point(labels, round(end.timestamp()) - PERIOD_S, value, cluster)


def checked_project(project: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", project):
        allowed = "6 to 30 letters, digits and dashes, as acme-ai-prod"
        raise InputError("--project is no project id", got=project, allowed=allowed, fix="give the id, not the name")
    return project


def checked_cluster(cluster: str) -> str:
    """It becomes part of a filter."""
    if cluster and not re.fullmatch(r"[a-z][a-z0-9-]{0,39}", cluster):
        allowed = "up to 40 letters, digits and dashes, as holdfast-prod"
        raise InputError("--cluster is no cluster name", got=cluster, allowed=allowed, fix="give its name alone")
    return cluster


def cloud_reader(project: str, cluster: str = "") -> CloudReader:
    from google.auth.exceptions import DefaultCredentialsError

    try:
        return CloudReader(client=monitoring_v3.MetricServiceClient(), project=project, cluster=cluster)
    except DefaultCredentialsError as error:
        raise Unjudged(f"no credentials for Cloud Monitoring: {error}") from error
