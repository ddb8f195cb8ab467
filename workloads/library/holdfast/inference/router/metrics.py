"""The Prometheus metrics of a router; names and help are in holdfast.vocabulary.serving."""

from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from holdfast.vocabulary import serving

_SEAM_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
_MOST_FIELDS = 32
_OTHER = "other"

M = TypeVar("M", Counter, Gauge, Histogram)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.streams = self._make(Gauge, serving.ROUTER_STREAMS)
        self.waiting = self._make(Gauge, serving.ROUTER_WAITING)
        self.servers = self._make(Gauge, serving.ROUTER_SERVERS, labelnames=("state",))
        self.ready = self._make(Gauge, serving.ROUTER_READY)
        self.requests = self._make(Counter, serving.ROUTER_REQUESTS, labelnames=("code",))
        self.refused = self._make(Counter, serving.ROUTER_REFUSED, labelnames=("reason",))
        self.moved = self._make(Counter, serving.ROUTER_MOVED, labelnames=("cause",))
        self.ended = self._make(Counter, serving.ROUTER_ENDED, labelnames=("cause",))
        self.unmoved = self._make(Counter, serving.ROUTER_UNMOVED, labelnames=("field",))
        self.tokens = self._make(Counter, serving.ROUTER_TOKENS)
        self.seam_seconds = self._make(Histogram, serving.ROUTER_SEAM_SECONDS, buckets=_SEAM_S)
        self._fields = set[str]()

    def count_unmoved(self, field: str) -> None:
        """Counts a request by its field. Clients choose names, so only some become labels."""
        if field not in self._fields and len(self._fields) >= _MOST_FIELDS:
            field = _OTHER
        self._fields.add(field)
        self.unmoved.labels(field).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _make(self, kind: type[M], name: str, **options: Any) -> M:
        description = serving.ROUTER_METRICS[name]
        return kind(name, description, registry=self.registry, **options)
