"""What a server counts, for Prometheus; names and help are in holdfast.contract.serving."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from holdfast.contract import serving

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 90.0)
_ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.running = self._gauge(serving.RUNNING)
        self.waiting = self._gauge(serving.WAITING)
        self.inflight = self._gauge(serving.INFLIGHT)
        self.ready = self._gauge(serving.READY)
        self.draining = self._gauge(serving.DRAINING)
        self.requests = self._counter(serving.REQUESTS, "code")
        self.refused = self._counter(serving.REFUSED, "reason")
        self.predictor_deaths = self._counter(serving.PREDICTOR_DEATHS)
        self.queue_seconds = self._histogram(serving.QUEUE_SECONDS, _SECONDS)
        self.predict_seconds = self._histogram(serving.PREDICT_SECONDS, _SECONDS)
        self.request_seconds = self._histogram(serving.REQUEST_SECONDS, _SECONDS)
        self.batch_items = self._histogram(serving.BATCH_ITEMS, _ITEMS)

    def answered(self) -> dict[str, int]:
        """HTTP code -> requests: what a process that ends leaves in its log, since it is not scraped again."""
        (family,) = self.requests.collect()
        return {s.labels["code"]: int(s.value) for s in family.samples if s.name.endswith("_total")}

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _gauge(self, name: str) -> Gauge:
        return Gauge(name, serving.SERVER_METRICS[name], registry=self.registry)

    def _counter(self, name: str, *labels: str) -> Counter:
        return Counter(name, serving.SERVER_METRICS[name], labels, registry=self.registry)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, serving.SERVER_METRICS[name], buckets=buckets, registry=self.registry)
