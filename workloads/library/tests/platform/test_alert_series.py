"""Tests of `workloads doctor` on the series that alerts read.

The Kubernetes API over HTTP and Cloud Monitoring over gRPC are simulated.
"""

import sys
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud import monitoring_v3
from google.cloud.monitoring_v3.services.metric_service.transports import MetricServiceGrpcTransport

from holdfast.clients.api import Api
from holdfast.support.checks import Check, Status, examine
from tests import platforms
from workloads.library.tests.cost.churn.metric_server import MetricServer
from workloads.library.tests.jobs.api_server import serving
from workloads.operators import alert_series

EXAMPLE = platforms.load("example")
GPU = [
    "prometheus.googleapis.com/DCGM_FI_DEV_XID_ERRORS/gauge",
    "prometheus.googleapis.com/DCGM_FI_DEV_ECC_DBE_VOL_TOTAL/counter",
    "prometheus.googleapis.com/DCGM_FI_DEV_ROW_REMAP_FAILURE/gauge",
]
OTHER_SERIES = [
    "kubernetes.io/node_pool/interruption_count",
    "kubernetes.io/container/accelerator/duty_cycle",
    "pubsub.googleapis.com/subscription/num_undelivered_messages",
    "custom.googleapis.com/holdfast/exporter_heartbeat_seconds",
    "prometheus.googleapis.com/envoy_http_downstream_rq_xx/counter",
    "prometheus.googleapis.com/holdfast_server_queue_seconds/histogram",
    "prometheus.googleapis.com/holdfast_server_refused_total/counter",
    "prometheus.googleapis.com/holdfast_server_requests_total/counter",
    "prometheus.googleapis.com/holdfast_server_ready/gauge",
    "prometheus.googleapis.com/holdfast_router_ended_total/counter",
    "prometheus.googleapis.com/holdfast_router_seam_seconds/histogram",
]
THERMAL = "prometheus.googleapis.com/DCGM_FI_DEV_THERMAL_VIOLATION/counter"
Judge = Callable[..., Check]


@pytest.fixture
def server() -> Generator[MetricServer]:
    server = MetricServer(clock=lambda: 0.0)
    yield server
    server.stop()


@pytest.fixture
def judge(server: MetricServer, tmp_path: Path) -> Judge:
    """Judges the example, or `platform`, with `nodes` that have a GPU."""
    server_client = server.start()

    def run(
        nodes: int = 0,
        *modules: str,
        platform: platforms.Platform = EXAMPLE,
        client: Any = server_client,
    ) -> Check:
        with serving({"/api/v1/nodes": [{}] * nodes}, tmp_path) as kubeconfig:
            probe = partial(alert_series.judge, Api(kubeconfig), modules, client=client)
            (check,) = examine(platform, [("series", probe)])
        return check

    return run


def test_missing_series_are_named_with_their_alert(server: MetricServer, judge: Judge) -> None:
    server.described = [*GPU, *OTHER_SERIES]
    check = judge(nodes=1)
    without_nodes = judge()
    assert check.verdict is Status.BROKEN
    assert check.found == "never written: DCGM_FI_DEV_THERMAL_VIOLATION (HoldfastGpuThrottled)"
    assert without_nodes.verdict is Status.UNKNOWN, "no GPU node at present"
    assert without_nodes.found.startswith(check.found)
    server.described.append(THERMAL)
    assert judge(nodes=1).verdict is Status.OK
    server.described = [name for name in server.described if "heartbeat" not in name]
    check = judge(nodes=1)
    assert check.verdict is Status.UNKNOWN
    assert "holdfast_exporter_heartbeat_seconds (HoldfastMonitoringSilent)" in check.found
    assert "holdfast_dead_letters_total (HoldfastDeadLetters)" in check.found, (
        "counters begin with their first event"
    )


def test_server_alerts_need_serving_and_team_alerts_are_included(
    server: MetricServer,
    judge: Judge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.described = [*GPU, THERMAL]
    for name in OTHER_SERIES:
        if "server" not in name and "envoy" not in name:
            server.described.append(name)
    assert judge().verdict is Status.UNKNOWN
    unserved = replace(EXAMPLE, serving=None)
    assert judge(platform=unserved).verdict is Status.OK
    (tmp_path / "team_alerts.py").write_text(
        "from monitoring.alerting.alert import Alert, Severity\ndef alerts():\n yield"
        " Alert(name='Team', severity=Severity.TICKET, why='w', query='team_queue{} > 3',"
        " runbook='r')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        check = judge(0, "team_alerts", platform=unserved)
    finally:
        sys.modules.pop("team_alerts", None)
    assert check.verdict is Status.UNKNOWN
    assert "team_queue (Team)" in check.found


def test_missing_access_is_not_judged(server: MetricServer, judge: Judge) -> None:
    server.faults = [grpc.StatusCode.PERMISSION_DENIED]
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        nowhere = monitoring_v3.MetricServiceClient(
            transport=MetricServiceGrpcTransport(channel=channel)
        )
        denied = judge(nodes=1)
        unanswered = judge(nodes=1, client=nowhere)
    assert denied.verdict is unanswered.verdict is Status.UNKNOWN
    assert "roles/monitoring.viewer" in denied.found
    assert "does not answer" in unanswered.found
