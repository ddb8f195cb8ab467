"""`workloads doctor` on the series that alerts read: a Kubernetes API over HTTP and Cloud
Monitoring over gRPC, simulated.
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
    f"prometheus.googleapis.com/DCGM_FI_DEV_{name}/{kind}"
    for name, kind in (
        ("XID_ERRORS", "gauge"),
        ("ECC_DBE_VOL_TOTAL", "counter"),
        ("ROW_REMAP_FAILURE", "gauge"),
    )
]
OTHERS = [
    "kubernetes.io/node_pool/interruption_count",
    "kubernetes.io/container/accelerator/duty_cycle",
    "pubsub.googleapis.com/subscription/num_undelivered_messages",
    "custom.googleapis.com/holdfast/exporter_heartbeat_seconds",
    "prometheus.googleapis.com/envoy_http_downstream_rq_xx/counter",
    "prometheus.googleapis.com/holdfast_server_queue_seconds/histogram",
    *(
        f"prometheus.googleapis.com/holdfast_server_{name}/counter"
        for name in ("refused_total", "requests_total")
    ),
    "prometheus.googleapis.com/holdfast_server_ready/gauge",
]
THERMAL = "prometheus.googleapis.com/DCGM_FI_DEV_THERMAL_VIOLATION/counter"


Judged = Callable[..., Check]


@pytest.fixture
def server() -> Generator[MetricServer]:
    server = MetricServer(clock=lambda: 0.0)
    yield server
    server.stop()


@pytest.fixture
def judged(server: MetricServer, tmp_path: Path) -> Judged:
    """Judges the example, or `platform`, with `nodes` that have a GPU; `client`: another one than
    the server's.
    """
    own = server.start()

    def judge(
        nodes: int = 0, *modules: str, platform: platforms.Platform = EXAMPLE, client: Any = own
    ) -> Check:
        with serving({"/api/v1/nodes": [{}] * nodes}, tmp_path) as kubeconfig:
            probe = partial(alert_series.judged, Api(kubeconfig), modules, client=client)
            (found,) = examine(platform, [("series", probe)])
        return found

    return judge


def test_series_that_were_never_written_are_named_with_their_alert(
    server: MetricServer, judged: Judged
) -> None:
    server.described = [*GPU, *OTHERS]
    found = judged(nodes=1)
    without_nodes = judged()
    assert found.verdict is Status.BROKEN
    assert found.found == "never written: DCGM_FI_DEV_THERMAL_VIOLATION (HoldfastGpuThrottled)"
    assert without_nodes.verdict is Status.UNKNOWN, "no GPU node at present"
    assert without_nodes.found.startswith(found.found)
    server.described.append(THERMAL)
    assert judged(nodes=1).verdict is Status.OK
    server.described = [each for each in server.described if "heartbeat" not in each]
    found = judged(nodes=1)
    assert found.verdict is Status.UNKNOWN
    assert "holdfast_exporter_heartbeat_seconds (HoldfastMonitoringSilent)" in found.found
    assert "holdfast_dead_letters_total (HoldfastDeadLetters)" in found.found, (
        "counters begin with their first event"
    )


def test_alerts_of_a_server_are_not_expected_without_one_and_own_alerts_are(
    server: MetricServer,
    judged: Judged,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.described = [
        *GPU,
        THERMAL,
        *(each for each in OTHERS if "server" not in each and "envoy" not in each),
    ]
    assert judged().verdict is Status.UNKNOWN
    unserved = replace(EXAMPLE, serving=None)
    assert judged(platform=unserved).verdict is Status.OK
    (tmp_path / "team_alerts.py").write_text(
        "from monitoring.alerting.alert import Alert, Severity\ndef alerts():\n yield"
        " Alert(name='Team', severity=Severity.TICKET, why='w', query='team_queue{} > 3',"
        " runbook='r')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        found = judged(0, "team_alerts", platform=unserved)
    finally:
        sys.modules.pop("team_alerts", None)
    assert found.verdict is Status.UNKNOWN
    assert "team_queue (Team)" in found.found


def test_without_access_or_answer_nothing_is_judged(server: MetricServer, judged: Judged) -> None:
    server.faults = [grpc.StatusCode.PERMISSION_DENIED]
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        nowhere = monitoring_v3.MetricServiceClient(
            transport=MetricServiceGrpcTransport(channel=channel)
        )
        found = [judged(nodes=1), judged(nodes=1, client=nowhere)]
    assert [each.verdict for each in found] == [Status.UNKNOWN] * 2
    assert "roles/monitoring.viewer" in found[0].found and "does not answer" in found[1].found
