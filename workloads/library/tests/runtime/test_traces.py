import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast.runtime import traces
from holdfast.runtime.events import EventLog

PATIENCE_S = 240
# Evicts itself in its third step.
LOOP = """
import os, signal, sys
import torch
from holdfast.checkpoint import Checkpointer
from holdfast.runtime import traces
traces.FLUSH_S = 60.0  # the collector lives, and a busy machine is slow
with Checkpointer(sys.argv[1], {"weight": torch.ones(2)}, run="r", every=2, window_s=90) as ckpt:
    for step in range(ckpt.step, 100):
        if step == 2:
            ckpt.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            ckpt.stop.shutdown.wait()
        ckpt.tick(step + 1)
"""


class Collector(BaseHTTPRequestHandler):
    """Takes spans as an OpenTelemetry collector does."""

    paths: list[str]
    bodies: list[bytes]

    def do_POST(self) -> None:
        self.paths.append(self.path)
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


@pytest.fixture
def collector() -> Iterator[HTTPServer]:
    Collector.paths = []
    Collector.bodies = []
    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Returns what the tracer provider of the program exports to."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


def duration_s(span: ReadableSpan) -> float:
    assert span.end_time and span.start_time
    return (span.end_time - span.start_time) / 1e9


def test_lines_with_a_duration_are_spans(exporter: InMemorySpanExporter) -> None:
    with EventLog.open(os.devnull, job="run-1", kind="training") as log:
        log.emit("restore", step=4, seconds=2.5, skipped=[[6, "damaged"]], source="store")
        log.emit("window", first_step=5, last_step=6, seconds=9.0)
        log.emit("save", step=6, blocking_seconds=0.25, bytes=10)
        log.emit("commit", step=6, seconds=1.5, bytes=10)
        log.emit("save_failed", step=8, reason="503")
        log.emit("stop", step=9, reason="SIGTERM")
        assert "holdfast.stop" not in [span.name for span in exporter.get_finished_spans()]
    spans = exporter.get_finished_spans()
    assert [(span.name, round(duration_s(span), 3)) for span in spans[:3]] == [
        ("holdfast.restore", 2.5),
        ("holdfast.stage", 0.25),
        ("holdfast.save", 1.5),
    ]
    assert [span.name for span in spans[3:]] == ["holdfast.save", "holdfast.stop"]
    assert dict(spans[0].attributes or {}) == {
        "holdfast.job": "run-1",
        "holdfast.kind": "training",
        "holdfast.step": 4,
        "holdfast.source": "store",
    }
    assert spans[3].status.description == "503" and not spans[3].status.is_ok
    assert (spans[4].attributes or {})["holdfast.reason"] == "SIGTERM"


@pytest.mark.parametrize(
    ("variables", "is_on"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "training"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_traces_are_off_until_the_environment_names_a_collector(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_on: bool
) -> None:
    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert traces.are_traces_on() is is_on


def test_missing_exporter_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    traces._make_provider.cache_clear()
    for _ in range(2):
        with EventLog.open(os.devnull, job="run-1", kind="training") as log:
            log.emit("commit", step=1, seconds=1.0, bytes=1)
    traces._make_provider.cache_clear()
    (line,) = caplog.messages
    assert "no traces are sent" in line


def test_collector_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    is_released = threading.Event()

    class Hanging(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            is_released.wait()
            return SpanExportResult.SUCCESS

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Hanging()))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    with EventLog.open(os.devnull, job="run-1", kind="training") as log:
        log.emit("stop", step=1, reason="SIGTERM")
    assert not is_released.is_set()
    is_released.set()
    provider.shutdown()


@pytest.mark.process
def test_evicted_loop_sends_its_spans(
    tmp_path: Path, collector: HTTPServer, trackers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(trackers))
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_SERVICE_NAME": "my-training",
        "PYTHONPATH": str(trackers),
    }
    loop = subprocess.run(
        [sys.executable, "-c", LOOP, str(tmp_path)],
        env=os.environ | variables,
        timeout=PATIENCE_S,
        capture_output=True,
        text=True,
    )
    assert loop.returncode == 143, loop.stderr
    assert set(Collector.paths) == {"/v1/traces"}
    ends = dict[str, int]()
    services = set[str]()
    for body in Collector.bodies:
        for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
            for entry in sent.resource.attributes:
                if entry.key == "service.name":
                    services.add(entry.value.string_value)
            for span in sent.scope_spans[0].spans:
                ends[span.name] = span.end_time_unix_nano
    assert services == {"my-training"}
    assert set(ends) == {"holdfast.restore", "holdfast.stage", "holdfast.save", "holdfast.stop"}
    assert max(ends, key=ends.__getitem__) == "holdfast.stop"
