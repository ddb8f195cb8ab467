"""The Prometheus metrics of a server; names and help are in holdfast.vocabulary.serving."""

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
        self.running = self._make(Gauge, serving.RUNNING)
        self.waiting = self._make(Gauge, serving.WAITING)
        self.inflight = self._make(Gauge, serving.INFLIGHT)
        self.ready = self._make(Gauge, serving.READY)
        self.draining = self._make(Gauge, serving.DRAINING)
        self.requests = self._make(
            Counter,
            serving.REQUESTS,
            labelnames=("code",),
        )
        self._responses: dict[int, Counter] = {}
        """The series of `requests`, which labels() would look up with a lock."""
        self.refused = self._make(
            Counter,
            serving.REFUSED,
            labelnames=("reason",),
        )
        self.predictor_deaths = self._make(Counter, serving.PREDICTOR_DEATHS)
        self.rejected = self._make(Counter, serving.REJECTED)
        self.queue_seconds = self._make(Histogram, serving.QUEUE_SECONDS, buckets=_SECONDS)
        self.predict_seconds = self._make(Histogram, serving.PREDICT_SECONDS, buckets=_SECONDS)
        self.request_seconds = self._make(Histogram, serving.REQUEST_SECONDS, buckets=_SECONDS)
        self.batch_items = self._make(Histogram, serving.BATCH_ITEMS, buckets=_ITEMS)

    def count_response(self, status: int) -> None:
        counter = self._responses.get(status)
        if counter is None:
            counter = self.requests.labels(str(status))
            self._responses[status] = counter
        counter.inc()

    def count_responses(self) -> dict[str, int]:
        """Returns the number of responses by HTTP code.

        A process that exits logs it, since it is not scraped again.
        """
        (family,) = self.requests.collect()
        counts: dict[str, int] = {}
        for sample in family.samples:
            if sample.name.endswith("_total"):
                counts[sample.labels["code"]] = int(sample.value)
        return counts

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _make(self, kind: type[M], name: str, **options: Any) -> M:
        description = serving.SERVER_METRICS[name]
        return kind(
            name,
            description,
            registry=self.registry,
            **options,
        )
