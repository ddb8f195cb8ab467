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
    """Holds the samples of one pass. A series that is missing from it ends."""

    def __init__(self) -> None:
        self._samples: tuple[Sample, ...] = ()
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def show(self, samples: Iterable[Sample]) -> None:
        self._samples = tuple(samples)

    def collect(self) -> Iterable[Metric]:
        samples_by_metric: dict[str, list[Sample]] = defaultdict(list)
        for sample in self._samples:
            samples_by_metric[sample.metric].append(sample)
        for metric, samples in samples_by_metric.items():
            yield _build_family(metric, samples)

    def serve(self, port: int, *, in_pod: bool = False) -> tuple[WSGIServer, threading.Thread]:
        """Serves on all addresses in a pod, where a NetworkPolicy admits only the collector.

        Elsewhere it serves this machine only.
        """
        address = "0.0.0.0" if in_pod else "127.0.0.1"
        return start_http_server(port, addr=address, registry=self.registry)


def _build_family(metric: str, samples: list[Sample]) -> Metric:
    # Only some jobs have an index, so the samples of one metric may differ in their labels.
    names: set[str] = set()
    for sample in samples:
        names.update(name for name, _ in sample.labels)
    keys = sorted(names)
    build = CounterMetricFamily if samples[0].cumulative else GaugeMetricFamily
    family = build(f"holdfast_{metric}", METRICS[metric], labels=keys)
    for sample in samples:
        labels = dict(sample.labels)
        family.add_metric([labels.get(key, "") for key in keys], sample.value)
    return family
