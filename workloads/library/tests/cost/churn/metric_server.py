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
LABELS_OF = {"k8s_cluster": {"project_id", "location", "cluster_name"}}
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
    """`clock`: the server's time, to judge points that are too old or from the future."""

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
        v3 = monitoring_v3
        calls: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
            "CreateTimeSeries": (
                self._create,
                v3.CreateTimeSeriesRequest.deserialize,
                empty_pb2.Empty.SerializeToString,
            ),
            "ListTimeSeries": (
                self._list,
                v3.ListTimeSeriesRequest.deserialize,
                v3.ListTimeSeriesResponse.serialize,
            ),
            "ListMetricDescriptors": (
                self._describe,
                v3.ListMetricDescriptorsRequest.deserialize,
                v3.ListMetricDescriptorsResponse.serialize,
            ),
        }
        handlers = {}
        for name, (call, read, write) in calls.items():
            handlers[name] = grpc.unary_unary_rpc_method_handler(
                self._answering(call), request_deserializer=read, response_serializer=write
            )
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        return v3.MetricServiceClient(transport=MetricServiceGrpcTransport(channel=self.channel))

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
        keys = [_key(series) for series in request.time_series]
        if not (
            re.fullmatch(PROJECT, request.name)
            and 1 <= len(keys) <= 200
            and len({*keys}) == len(keys)
        ):
            raise Refused(f"{len(keys)} series in {request.name}: at most 200 a call, none twice")
        for series, key in zip(request.time_series, keys, strict=True):
            for complaint in self._complaints(series, key):
                raise Refused(complaint)
        for series, key in zip(request.time_series, keys, strict=True):
            [point] = series.points
            value = point.value.double_value or point.value.int64_value
            self.points.setdefault(key, []).append((point.interval.end_time.timestamp(), value))
            if point.interval.start_time:
                self.starts[key] = point.interval.start_time.timestamp()
            self.runs.setdefault(key, []).append(self.starts.get(key, 0.0))
        self.calls.append(len(keys))
        return empty_pb2.Empty()

    def _complaints(self, series: monitoring_v3.TimeSeries, key: Any) -> Iterator[str]:
        [point] = series.points
        if not re.fullmatch(r"custom\.googleapis\.com/[A-Za-z0-9_/]{1,150}", series.metric.type):
            yield f"metric type {series.metric.type}"
        if set(series.resource.labels) != LABELS_OF.get(series.resource.type):
            yield f"labels of {series.resource.type}: {set(series.resource.labels)}"
        if len(series.metric.labels) > 30 or any(
            len(v) > 1024 for v in series.metric.labels.values()
        ):
            yield "labels"
        kind = (
            int(series.metric_kind),
            str(monitoring_v3.TypedValue.pb(point.value).WhichOneof("value")),
        )
        if self.kinds.setdefault(series.metric.type, kind) != kind:
            yield f"kind or type of {series.metric.type} changed"
        end = point.interval.end_time.timestamp()
        start = point.interval.start_time.timestamp() if point.interval.start_time else end
        cumulative = series.metric_kind == CUMULATIVE
        if cumulative is (start == end) or start > end:
            yield "a cumulative interval needs length, a gauge is a moment"
        if cumulative and start < self.starts.get(key, 0.0):
            yield "a start time that goes back"
        if end > self.clock() + 300 or end < self.clock() - 25 * 3600:
            yield "too far from now"
        points = self.points.get(key)
        if points and end - points[-1][0] < MIN_GAP_S:
            yield "older than the newest point, or closer than the sampling period"

    def _describe(self, request: Any) -> monitoring_v3.ListMetricDescriptorsResponse:
        number = int(request.page_token or 0)
        names = self.described[number : number + 1]
        descriptors = [metric_pb2.MetricDescriptor(type=name) for name in names]
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
            raise Refused("told to fail", self.fault_on_page)
        matched = FILTER.fullmatch(request.filter)
        begin = request.interval.start_time.timestamp()
        end = request.interval.end_time.timestamp()
        period = request.aggregation.alignment_period.total_seconds()
        if (
            not matched
            or not re.fullmatch(PROJECT, request.name)
            or not 60 <= period == end - begin
        ):
            raise Refused(f"{request.name} {request.filter} {begin} {end} {period}")
        metric, cluster = matched.groups()
        if metric not in self.kinds:
            raise Refused(
                f"Cannot find metric(s) that match type = {metric}", grpc.StatusCode.NOT_FOUND
            )
        if request.aggregation.per_series_aligner != DELTA or self.kinds[metric][0] != CUMULATIVE:
            raise Refused(f"the aligner does not fit {metric}")
        keys = []
        for key, points in sorted(self.points.items()):
            is_selected = key[0] == metric and cluster in (None, dict(key[2])["cluster_name"])
            # A series without a point within the period is not listed.
            if is_selected and any(begin < t <= end for t, _ in points):
                keys.append(key)
        page = [self._series(key, begin, end) for key in keys[first : first + self.page_series]]
        self.pages.append(len(page))
        rest = str(first + self.page_series) if len(keys) > first + self.page_series else ""
        errors = [status_pb2.Status(code=13, message=self.incomplete)] if self.incomplete else []
        return monitoring_v3.ListTimeSeriesResponse(
            time_series=page, next_page_token=rest, execution_errors=errors
        )

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
        runs = zip(self.points[key], self.runs[key], strict=True)
        return sum({run: value for (t, value), run in runs if t <= until}.values())


def _key(series: monitoring_v3.TimeSeries) -> Any:
    metric_labels = tuple(sorted(series.metric.labels.items()))
    resource_labels = tuple(sorted(series.resource.labels.items()))
    return series.metric.type, metric_labels, resource_labels
