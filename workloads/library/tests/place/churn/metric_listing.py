"""The list call of metric_server.py: filter, one period, pages, and the complaints of the API."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.api import metric_pb2
from google.cloud import monitoring_v3
from google.rpc import status_pb2

CUMULATIVE = metric_pb2.MetricDescriptor.MetricKind.CUMULATIVE
Aligner = monitoring_v3.Aggregation.Aligner
FILTER = re.compile(
    r'metric\.type = "([^"]+)" AND resource\.type = "k8s_cluster"(?: AND resource\.labels\.cluster_name = "([^"]+)")?'
)
Points = Mapping[Any, list[tuple[float, float]]]
Curve = list[tuple[float, float]]


@dataclass
class Listing:
    page_series: int = 100
    incomplete: str = ""
    """What the next answers tell as an execution error."""
    fault_on_page: grpc.StatusCode | None = None
    """The answer to every page but the first."""
    pages: list[int] = field(default_factory=list[int])
    """Series of each page that was handed out."""

    def answer(
        self,
        request: monitoring_v3.ListTimeSeriesRequest,
        points: Points,
        runs: Mapping[Any, list[float]],
        kinds: Mapping[str, tuple[int, str]],
    ) -> monitoring_v3.ListTimeSeriesResponse | tuple[grpc.StatusCode, str]:
        if request.page_token and self.fault_on_page:
            return self.fault_on_page, "told to fail"
        matched = FILTER.fullmatch(request.filter)
        begin, end = request.interval.start_time.timestamp(), request.interval.end_time.timestamp()
        period = request.aggregation.alignment_period.total_seconds()
        if not matched or not re.fullmatch(r"projects/[a-z0-9-]+", request.name) or not 60 <= period == end - begin:
            return grpc.StatusCode.INVALID_ARGUMENT, f"{request.name} {request.filter} {begin} {end} {period}"
        if matched[1] not in kinds:
            return grpc.StatusCode.NOT_FOUND, f"Cannot find metric(s) that match type = {matched[1]}"
        aligner = request.aggregation.per_series_aligner
        if aligner != Aligner.ALIGN_DELTA or kinds[matched[1]][0] != CUMULATIVE:
            return grpc.StatusCode.INVALID_ARGUMENT, f"{aligner} does not fit {matched[1]}"
        wanted = matched[2]
        keys = sorted(k for k in points if k[0] == matched[1] and wanted in (None, dict(k[2])["cluster_name"]))
        series = [_series(key, points[key], runs[key], begin, end) for key in keys]
        return self._page([one for one in series if one.points], request.page_token)

    def _page(self, series: list[monitoring_v3.TimeSeries], token: str) -> monitoring_v3.ListTimeSeriesResponse:
        first = int(token or 0)
        page = series[first : first + self.page_series]
        self.pages.append(len(page))
        rest = str(first + self.page_series) if len(series) > first + self.page_series else ""
        errors = [status_pb2.Status(code=13, message=self.incomplete)] if self.incomplete else []
        return monitoring_v3.ListTimeSeriesResponse(time_series=page, next_page_token=rest, execution_errors=errors)


def _series(key: Any, points: Curve, runs: list[float], begin: float, end: float) -> monitoring_v3.TimeSeries:
    """Without a point where nothing was written within the period."""
    found = monitoring_v3.TimeSeries()
    found.metric.type = key[0]
    found.metric.labels.update(dict(key[1]))
    found.resource.type = "k8s_cluster"
    found.resource.labels.update(dict(key[2]))
    # By the newest point: the API interpolates, which no test here needs.
    grown = _grown(points, runs, end) - _grown(points, runs, begin)
    if any(begin < t <= end for t, _ in points):
        interval = {"start_time": {"seconds": int(begin)}, "end_time": {"seconds": int(end)}}
        found.points = [{"interval": interval, "value": {"double_value": grown}}]
    return found


def _grown(points: Curve, runs: list[float], until: float) -> float:
    """By how much a counter grew in all its runs: each begins at 0."""
    last = {run: value for (t, value), run in zip(points, runs, strict=True) if t <= until}
    return sum(last.values())
