"""Cloud Monitoring in this process, to write and to list: refuses what the API would refuse, and can be told to fail."""

import re
import threading
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.api import metric_pb2
from google.cloud import monitoring_v3
from google.cloud.monitoring_v3.services.metric_service.transports import MetricServiceGrpcTransport
from google.protobuf import empty_pb2

from workloads.library.tests.place.churn.metric_listing import Listing

SERVICE = "google.monitoring.v3.MetricService"
MIN_GAP_S = 5.0
LABELS_OF = {"k8s_cluster": {"project_id", "location", "cluster_name"}}
CUMULATIVE = metric_pb2.MetricDescriptor.MetricKind.CUMULATIVE


@dataclass
class MetricServer:
    """`clock`: the server's time, to judge points that are too old or from the future."""

    clock: Any
    calls: list[int] = field(default_factory=list[int])
    """Series of each accepted call."""
    points: dict[Any, list[tuple[float, float]]] = field(default_factory=dict[Any, list[tuple[float, float]]])
    faults: list[grpc.StatusCode] = field(default_factory=list[grpc.StatusCode])
    """Answers of the next calls, before it works again."""
    kinds: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    starts: dict[Any, float] = field(default_factory=dict[Any, float])
    runs: dict[Any, list[float]] = field(default_factory=dict[Any, list[float]])
    """Start time of each point of a counter."""
    described: list[str] = field(default_factory=list[str])
    """Metric types that the project has, each a page."""
    listing: Listing = field(default_factory=Listing)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> monitoring_v3.MetricServiceClient:
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        create = grpc.unary_unary_rpc_method_handler(
            self._create,
            request_deserializer=monitoring_v3.CreateTimeSeriesRequest.deserialize,
            response_serializer=empty_pb2.Empty.SerializeToString,
        )
        list_ = grpc.unary_unary_rpc_method_handler(
            self._list,
            request_deserializer=monitoring_v3.ListTimeSeriesRequest.deserialize,
            response_serializer=monitoring_v3.ListTimeSeriesResponse.serialize,
        )
        describe = grpc.unary_unary_rpc_method_handler(
            self._describe,
            request_deserializer=monitoring_v3.ListMetricDescriptorsRequest.deserialize,
            response_serializer=monitoring_v3.ListMetricDescriptorsResponse.serialize,
        )
        handlers = {"CreateTimeSeries": create, "ListTimeSeries": list_, "ListMetricDescriptors": describe}
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        return monitoring_v3.MetricServiceClient(transport=MetricServiceGrpcTransport(channel=self.channel))

    def stop(self) -> None:
        self.channel.close()
        self.server.stop(None).wait()

    def _create(self, request: monitoring_v3.CreateTimeSeriesRequest, context: grpc.ServicerContext) -> empty_pb2.Empty:
        with self._lock:
            if self.faults:
                context.abort(self.faults.pop(0), "told to fail")
            complaint = self._complaint(request)
            if complaint:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, complaint)
            for series in request.time_series:
                self._take(series)
            self.calls.append(len(request.time_series))
        return empty_pb2.Empty()

    def _list(
        self, request: monitoring_v3.ListTimeSeriesRequest, context: grpc.ServicerContext
    ) -> monitoring_v3.ListTimeSeriesResponse:
        with self._lock:
            if self.faults:
                context.abort(self.faults.pop(0), "told to fail")
            found = self.listing.answer(request, self.points, self.runs, self.kinds)
            if isinstance(found, tuple):
                context.abort(*found)
            return found

    def _describe(
        self, request: monitoring_v3.ListMetricDescriptorsRequest, context: grpc.ServicerContext
    ) -> monitoring_v3.ListMetricDescriptorsResponse:
        with self._lock:
            if self.faults:
                context.abort(self.faults.pop(0), "told to fail")
        at = int(request.page_token or 0)
        return monitoring_v3.ListMetricDescriptorsResponse(
            metric_descriptors=[metric_pb2.MetricDescriptor(type=each) for each in self.described[at : at + 1]],
            next_page_token=str(at + 1) if at + 1 < len(self.described) else "",
        )

    def _complaint(self, request: monitoring_v3.CreateTimeSeriesRequest) -> str:
        if not re.fullmatch(r"projects/[a-z0-9-]+", request.name):
            return f"name {request.name}"
        if not 1 <= len(request.time_series) <= 200:
            return f"{len(request.time_series)} series; at most 200 a call"
        keys = [_key(series) for series in request.time_series]
        if len(set(keys)) < len(keys):
            return "a series twice in one call"
        return next(
            (text for s, key in zip(request.time_series, keys, strict=True) if (text := self._wrong(s, key))), ""
        )

    def _wrong(self, series: monitoring_v3.TimeSeries, key: Any) -> str:
        if len(series.points) != 1:
            return "one point a series"
        if not re.fullmatch(r"custom\.googleapis\.com/[A-Za-z0-9_/]{1,150}", series.metric.type):
            return f"metric type {series.metric.type}"
        if set(series.resource.labels) != LABELS_OF.get(series.resource.type):
            return f"labels of {series.resource.type}: {set(series.resource.labels)}"
        if len(series.metric.labels) > 30 or any(len(v) > 1024 for v in series.metric.labels.values()):
            return "labels"
        return self._wrong_value(series) or self._wrong_time(series, key)

    def _wrong_value(self, series: monitoring_v3.TimeSeries) -> str:
        kind = int(series.metric_kind), str(monitoring_v3.TypedValue.pb(series.points[0].value).WhichOneof("value"))
        return (
            ""
            if self.kinds.setdefault(series.metric.type, kind) == kind
            else f"kind or type of {series.metric.type} changed"
        )

    def _wrong_time(self, series: monitoring_v3.TimeSeries, key: Any) -> str:
        interval = series.points[0].interval
        end = interval.end_time.timestamp()
        start = interval.start_time.timestamp() if interval.start_time else end
        if series.metric_kind == CUMULATIVE:
            if start >= end:
                return "a cumulative interval needs length"
            if start < self.starts.get(key, 0.0):
                return "a start time that goes back"
        elif start != end:
            return "a gauge is a moment"
        if end > self.clock() + 300 or end < self.clock() - 25 * 3600:
            return "too far from now"
        held = self.points.get(key)
        if held and end <= held[-1][0]:
            return "older than the newest point"
        return "closer than the sampling period" if held and end - held[-1][0] < MIN_GAP_S else ""

    def _take(self, series: monitoring_v3.TimeSeries) -> None:
        [point] = series.points
        value = point.value.double_value or point.value.int64_value
        self.points.setdefault(_key(series), []).append((point.interval.end_time.timestamp(), value))
        if point.interval.start_time:
            self.starts[_key(series)] = point.interval.start_time.timestamp()
        self.runs.setdefault(_key(series), []).append(self.starts.get(_key(series), 0.0))


def _key(series: monitoring_v3.TimeSeries) -> Any:
    return (
        series.metric.type,
        tuple(sorted(series.metric.labels.items())),
        tuple(sorted(series.resource.labels.items())),
    )
