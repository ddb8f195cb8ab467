"""What a server counts, for Prometheus; names and help are in holdfast.vocabulary.serving."""

from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from holdfast.vocabulary import serving

_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    90.0,
)
_ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

M = TypeVar("M", Counter, Gauge, Histogram)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.running = self._of(Gauge, serving.RUNNING)
        self.waiting = self._of(Gauge, serving.WAITING)
        self.inflight = self._of(Gauge, serving.INFLIGHT)
        self.ready = self._of(Gauge, serving.READY)
        self.draining = self._of(Gauge, serving.DRAINING)
        self.requests = self._of(Counter, serving.REQUESTS, labelnames=("code",))
        self.refused = self._of(Counter, serving.REFUSED, labelnames=("reason",))
        self.predictor_deaths = self._of(Counter, serving.PREDICTOR_DEATHS)
        self.queue_seconds = self._of(Histogram, serving.QUEUE_SECONDS, buckets=_SECONDS)
        self.predict_seconds = self._of(Histogram, serving.PREDICT_SECONDS, buckets=_SECONDS)
        self.request_seconds = self._of(Histogram, serving.REQUEST_SECONDS, buckets=_SECONDS)
        self.batch_items = self._of(Histogram, serving.BATCH_ITEMS, buckets=_ITEMS)

    def answered(self) -> dict[str, int]:
        """HTTP code -> requests: what a process that ends leaves in its log, since it is not
        scraped again.
        """
        (family,) = self.requests.collect()
        return {s.labels["code"]: int(s.value) for s in family.samples if s.name.endswith("_total")}

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _of(self, kind: type[M], name: str, **more: Any) -> M:
        return kind(name, serving.SERVER_METRICS[name], registry=self.registry, **more)
