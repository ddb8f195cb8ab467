# pyright: reportMissingImports=false
"""Spans of restores, saves and stops for OpenTelemetry, made of the lines of the event log.

Off by default. They go to the tracer provider of the program, or, if it has none, to the collector
that the standard environment variables name.
"""

# Why it is so: infra/decisions/0191.

import os
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from holdfast.runtime import logs
from holdfast.support.distribution import install_command

SPANS = {
    "restore": "holdfast.restore",
    "save": "holdfast.stage",
    "commit": "holdfast.save",
    "save_failed": "holdfast.save",
    "resized": "holdfast.resize",
}
"""Type of an event line -> name of its span."""
STOP_SPAN = "holdfast.stop"
DURATIONS = ("seconds", "blocking_seconds")
FLUSH_S = 1.0
"""Longest wait for the collector at the end of a run, which is part of the window's margin."""
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def are_traces_on() -> bool:
    """Returns True if the program has a tracer provider, or the environment names a collector."""
    return _find_program_provider() is not None or _has_collector(os.environ)


class Traces:
    """Spans of one process. Nothing is imported before the first one."""

    def __init__(self, identity: Mapping[str, object]) -> None:
        """`identity`: attributes of every span."""
        self._identity = identity
        self._provider: Any = None
        self._is_off = False
        self._stop_span: Any = None
        self._has_unsent = False

    def record(self, event: str, fields: Mapping[str, object]) -> None:
        """Records the span of an event line, if it has a duration or is a stop. `exit` ends all."""
        if event == "exit":
            self.end()
        if event != "stop" and event not in SPANS:
            return
        tracer = self._find_tracer()
        if tracer is None:
            return
        self._has_unsent = True
        if event == "stop":
            self._stop_span = tracer.start_span(STOP_SPAN, attributes=self._describe(fields))
            return
        end_ns = time.time_ns()
        duration_s = 0.0
        for name in DURATIONS:
            if name in fields:
                duration_s = float(str(fields[name]))
                break
        span = tracer.start_span(
            SPANS[event],
            start_time=end_ns - int(duration_s * 1e9),
            attributes=self._describe(fields),
        )
        if event == "save_failed":
            _mark_failure(span, str(fields.get("reason", "")))
        span.end(end_ns)

    def end(self) -> None:
        """Ends the span of a stop and sends what is left, for at most FLUSH_S."""
        if self._stop_span is not None:
            self._stop_span.end()
            self._stop_span = None
        # Only the SDK's provider can flush, and its exporter may wait for a collector that is gone.
        flush = getattr(self._provider, "force_flush", None)
        if flush is None or not self._has_unsent:
            return
        self._has_unsent = False
        thread = threading.Thread(target=flush, name="traces", daemon=True)
        thread.start()
        thread.join(FLUSH_S)

    def _describe(self, fields: Mapping[str, object]) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        for name, value in (*self._identity.items(), *fields.items()):
            if isinstance(value, (str, int, float)) and name not in DURATIONS:
                attributes[f"holdfast.{name}"] = value
        return attributes

    def _find_tracer(self) -> Any:
        """Returns None if there are no traces."""
        if self._provider is None and not self._is_off:
            self._provider = _find_program_provider()
            if self._provider is None and _has_collector(os.environ):
                self._provider = _make_provider()
            self._is_off = self._provider is None
        return self._provider and self._provider.get_tracer("holdfast")


def _has_collector(environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporters = environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",")
    return "otlp" in exporters and any(environ.get(name) for name in _ENDPOINTS)


def _find_program_provider() -> Any:
    """Returns the tracer provider that the program has set, or None."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider


@cache
def _make_provider() -> Any:
    """Returns a provider that sends to the collector of the environment; None without the extra."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        # A platform may set the variables for every pod.
        reason = "no traces are sent, because OpenTelemetry's exporter is not installed"
        logs.warning("traces", f"{reason}: {install_command('otel')}")
        return None
    # At the exit of the interpreter it would wait for the collector, beyond the window.
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _mark_failure(span: Any, reason: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, reason))
