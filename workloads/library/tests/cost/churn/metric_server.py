"""Fakes Cloud Monitoring: refuses what the API would refuse, and fails on demand."""

import re
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.api import metric_pb2
from google.cloud import monitoring_v3
from google.cloud.monitoring_v3.services.metric_service.transports import MetricServiceGrpcTransport
from google.protobuf import empty_pb2
from google.rpc import status_pb2

SERVICE = "google.monitoring.v3.MetricService"
MIN_GAP_S = 5.0
PROJECT = "projects/[a-z0-9-]+"
LABELS_BY_RESOURCE = {"k8s_cluster": {"project_id", "location", "cluster_name"}}
CUMULATIVE = metric_pb2.MetricDescriptor.MetricKind.CUMULATIVE
DELTA = monitoring_v3.Aggregation.Aligner.ALIGN_DELTA
_OF_ONE = r'(?: AND resource\.labels\.cluster_name = "([^"]+)")?'
FILTER = re.compile(rf'metric\.type = "([^"]+)" AND resource\.type = "k8s_cluster"{_OF_ONE}')


class Refused(Exception):
    def __init__(self, text: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class MetricServer:
    """Runs the fake; by `clock` it judges which points are too old or from the future."""

    clock: Any
    calls: list[int] = field(default_factory=list)
    """Series of each accepted call."""
    points: dict[Any, list[tuple[float, float]]] = field(default_factory=dict)
    faults: list[grpc.StatusCode] = field(default_factory=list)
    """Errors of the next calls, before it works again."""
    kinds: dict[str, tuple[int, str]] = field(default_factory=dict)
    starts: dict[Any, float] = field(default_factory=dict)
    runs: dict[Any, list[float]] = field(default_factory=dict)
    """Start time of each point of a counter."""
    described: list[str] = field(default_factory=list)
    """Metric types that the project has, each a page."""
    page_series: int = 100
    incomplete: str = ""
    """The execution error of the next listings."""
    fault_on_page: grpc.StatusCode | None = None
    """The error of every page except the first."""
    pages: list[int] = field(default_factory=list)
    """Series of each page that was handed out."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> monitoring_v3.MetricServiceClient:
        handlers = {
            "CreateTimeSeries": self._make_handler(
                self._create,
                monitoring_v3.CreateTimeSeriesRequest,
                empty_pb2.Empty.SerializeToString,
            ),
            "ListTimeSeries": self._make_handler(
                self._list,
                monitoring_v3.ListTimeSeriesRequest,
                monitoring_v3.ListTimeSeriesResponse.serialize,
            ),
            "ListMetricDescriptors": self._make_handler(
                self._describe,
                monitoring_v3.ListMetricDescriptorsRequest,
                monitoring_v3.ListMetricDescriptorsResponse.serialize,
            ),
        }
        handler = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        self.server.add_generic_rpc_handlers((handler,))
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        transport = MetricServiceGrpcTransport(channel=self.channel)
        return monitoring_v3.MetricServiceClient(transport=transport)

    def _make_handler(
        self,
        call: Callable[[Any], Any],
        request: Any,
        serialize: Any,
    ) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(
            self._answering(call),
            request_deserializer=request.deserialize,
            response_serializer=serialize,
        )

    def stop(self) -> None:
        self.channel.close()
        self.server.stop(None).wait()

    def _answering(self, call: Callable[[Any], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            with self._lock:
                if self.faults:
                    context.abort(self.faults.pop(0), "told to fail")
                try:
                    return call(request)
                except Refused as refused:
                    context.abort(refused.code, str(refused))

        return answer

    def _create(self, request: monitoring_v3.CreateTimeSeriesRequest) -> empty_pb2.Empty:
        count = len(request.time_series)
        series_by_key = {_key(series): series for series in request.time_series}
        is_project = re.fullmatch(PROJECT, request.name)
        is_unique = len(series_by_key) == count
        if not is_project or not is_unique or not 1 <= count <= 200:
            raise Refused(f"{count} series in {request.name}: at most 200 a call, none twice")
        for key, series in series_by_key.items():
            for complaint in self._complaints(series, key):
                raise Refused(complaint)
        for key, series in series_by_key.items():
            self._store(key, series)
        self.calls.append(count)
        return empty_pb2.Empty()

    def _store(self, key: Any, series: monitoring_v3.TimeSeries) -> None:
        [point] = series.points
        value = point.value.double_value or point.value.int64_value
        interval = point.interval
        points = self.points.setdefault(key, [])
        points.append((interval.end_time.timestamp(), value))
        if interval.start_time:
            self.starts[key] = interval.start_time.timestamp()
        runs = self.runs.setdefault(key, [])
        runs.append(self.starts.get(key, 0.0))

    def _complaints(self, series: monitoring_v3.TimeSeries, key: Any) -> Iterator[str]:
        [point] = series.points
        metric = series.metric
        resource = series.resource
        if not re.fullmatch(r"custom\.googleapis\.com/[A-Za-z0-9_/]{1,150}", metric.type):
            yield f"metric type {metric.type}"
        names = set(resource.labels)
        if names != LABELS_BY_RESOURCE.get(resource.type):
            yield f"labels of {resource.type}: {names}"
        longest = max(map(len, metric.labels.values()), default=0)
        if len(metric.labels) > 30 or longest > 1024:
            yield "labels"
        value = monitoring_v3.TypedValue.pb(point.value)
        kind = (int(series.metric_kind), str(value.WhichOneof("value")))
        if self.kinds.setdefault(metric.type, kind) != kind:
            yield f"kind or type of {metric.type} changed"
        interval = point.interval
        end = interval.end_time.timestamp()
        start = end
        if interval.start_time:
            start = interval.start_time.timestamp()
        is_cumulative = series.metric_kind == CUMULATIVE
        if start > end or is_cumulative is (start == end):
            yield "a cumulative interval needs length, a gauge is a moment"
        if is_cumulative and start < self.starts.get(key, 0.0):
            yield "a start time that goes back"
        now = self.clock()
        if end > now + 300 or end < now - 25 * 3600:
            yield "too far from now"
        points = self.points.get(key)
        if points and end - points[-1][0] < MIN_GAP_S:
            yield "older than the newest point, or closer than the sampling period"

    def _describe(self, request: Any) -> monitoring_v3.ListMetricDescriptorsResponse:
        number = int(request.page_token or 0)
        names = self.described[number : number + 1]
        descriptors: list[metric_pb2.MetricDescriptor] = []
        for name in names:
            descriptors.append(metric_pb2.MetricDescriptor(type=name))
        has_more = number + 1 < len(self.described)
        return monitoring_v3.ListMetricDescriptorsResponse(
            metric_descriptors=descriptors,
            next_page_token=str(number + 1) if has_more else "",
        )

    def _list(
        self, request: monitoring_v3.ListTimeSeriesRequest
    ) -> monitoring_v3.ListTimeSeriesResponse:
        first = int(request.page_token or 0)
        if first and self.fault_on_page:
            raise Refused("asked to fail", self.fault_on_page)
        matched = FILTER.fullmatch(request.filter)
        begin = request.interval.start_time.timestamp()
        end = request.interval.end_time.timestamp()
        aggregation = request.aggregation
        period = aggregation.alignment_period.total_seconds()
        is_project = re.fullmatch(PROJECT, request.name)
        if not matched or not is_project or period != end - begin or period < 60:
            raise Refused(f"{request.name} {request.filter} {begin} {end} {period}")
        metric, cluster = matched.groups()
        if metric not in self.kinds:
            message = f"Cannot find metric(s) that match type = {metric}"
            raise Refused(message, grpc.StatusCode.NOT_FOUND)
        kind, _ = self.kinds[metric]
        if aggregation.per_series_aligner != DELTA or kind != CUMULATIVE:
            raise Refused(f"the aligner does not fit {metric}")
        keys: list[Any] = []
        for key, points in sorted(self.points.items()):
            # A series without a point within the period is not listed.
            if _is_selected(key, metric, cluster) and _has_point(points, begin, end):
                keys.append(key)
        following = first + self.page_series
        page = []
        for key in keys[first:following]:
            page.append(self._series(key, begin, end))
        self.pages.append(len(page))
        response = monitoring_v3.ListTimeSeriesResponse(time_series=page)
        if len(keys) > following:
            response.next_page_token = str(following)
        if self.incomplete:
            error = status_pb2.Status(code=13, message=self.incomplete)
            response.execution_errors = [error]
        return response

    def _series(self, key: Any, begin: float, end: float) -> monitoring_v3.TimeSeries:
        series = monitoring_v3.TimeSeries()
        series.metric.type = key[0]
        series.resource.type = "k8s_cluster"
        series.metric.labels.update(dict(key[1]))
        series.resource.labels.update(dict(key[2]))
        # The newest point counts: the API interpolates, which no test here needs.
        growth = self._sum_growth(key, end) - self._sum_growth(key, begin)
        interval = {
            "start_time": {"seconds": int(begin)},
            "end_time": {"seconds": int(end)},
        }
        series.points = [
            {
                "interval": interval,
                "value": {"double_value": growth},
            }
        ]
        return series

    def _sum_growth(self, key: Any, until: float) -> float:
        """Returns how much a counter grew in all its runs, each of which starts at 0."""
        newest_values: dict[float, float] = {}
        for (time_s, value), run in zip(self.points[key], self.runs[key], strict=True):
            if time_s <= until:
                newest_values[run] = value
        return sum(newest_values.values())


def _is_selected(key: Any, metric: str, cluster: str | None) -> bool:
    """Tells whether a series is of a metric, and of a cluster if one is named."""
    name, _, resource_labels = key
    if name != metric:
        return False
    return cluster in (None, dict(resource_labels)["cluster_name"])


def _has_point(points: list[tuple[float, float]], begin: float, end: float) -> bool:
    return any(begin < time_s <= end for time_s, _ in points)


def _key(series: monitoring_v3.TimeSeries) -> Any:
    metric_labels = tuple(sorted(series.metric.labels.items()))
    resource_labels = tuple(sorted(series.resource.labels.items()))
    return series.metric.type, metric_labels, resource_labels
