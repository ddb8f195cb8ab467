"""Serves the newest samples under /metrics."""

import threading
from collections import defaultdict
from collections.abc import Iterable
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.controllers.sample import Sample
from holdfast.vocabulary.telemetry import METRICS


class Newest(Collector):
    """Holds one pass. A series that is not in it is gone, as its job or pool is."""

    def __init__(self) -> None:
        self._samples: tuple[Sample, ...] = ()
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def show(self, samples: Iterable[Sample]) -> None:
        self._samples = tuple(samples)

    def collect(self) -> Iterable[Metric]:
        by_metric: dict[str, list[Sample]] = defaultdict(list)
        for one in self._samples:
            by_metric[one.metric].append(one)
        for metric, samples in by_metric.items():
            yield _family(metric, samples)

    def serve(self, port: int, *, in_pod: bool = False) -> tuple[WSGIServer, threading.Thread]:
        """In a pod on its address, which a NetworkPolicy opens to the collector alone; elsewhere to
        this machine.
        """
        return start_http_server(
            port, addr="0.0.0.0" if in_pod else "127.0.0.1", registry=self.registry
        )


def _family(metric: str, samples: list[Sample]) -> Metric:
    # an index is of some jobs only
    keys = sorted({key for one in samples for key, _ in one.labels})
    build = CounterMetricFamily if samples[0].cumulative else GaugeMetricFamily
    family = build(f"holdfast_{metric}", METRICS[metric], labels=keys)
    for one in samples:
        family.add_metric([dict(one.labels).get(key, "") for key in keys], one.value)
    return family
