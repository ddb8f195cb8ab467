"""explain, list and dashboard show one number for a job that Kueue holds, and the report once it
has started.
"""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.clients.api import Api, Object
from holdfast.controllers.cluster import Cluster
from holdfast.cost import prices
from holdfast.exporter.cloud import CloudWriter
from holdfast.jobs.diagnose import cluster_snapshot, explain
from holdfast.ledger.events import parse
from holdfast.report.capacity import Capacities, capacities
from holdfast.support.values import rfc3339
from holdfast.vocabulary.pools import LABEL_ACCELERATOR
from monitoring.alerting.alert import EXAMPLE, Alert, Severity, fill
from monitoring.alerting.dashboard import on_call
from tests import platforms
from tests.monitoring.alerting.firings import Recorder, firings
from workloads.library.tests.cost.churn.test_cloud import HOUR, MIDNIGHT
from workloads.library.tests.jobs.api_server import serving

pytestmark = pytest.mark.process
WAITED_S = 7_523
NOW = MIDNIGHT + 3 * HOUR
META = {
    "namespace": "training",
    "creationTimestamp": rfc3339(NOW - WAITED_S),
}
TEMPLATE = {
    "spec": {
        "containers": [{"name": "main", "image": "i"}],
        "nodeSelector": {LABEL_ACCELERATOR: "nvidia-l4"},
    }
}


HELD = {
    "quota": "False",
    "admission check": "True",
    "flex queue": "True",
}
"""Kind of wait -> whether Kueue has reserved its quota."""


def workload(condition: str, status: str) -> Object:
    owner = {
        "kind": "Job",
        "name": "train",
        "uid": "j",
    }
    return {
        "metadata": (
            META
            | {
                "name": "job-train",
                "uid": "w",
                "ownerReferences": [owner],
            }
        ),
        "spec": {
            "queueName": "spot",
            "active": True,
            "podSets": [{"name": "main", "template": TEMPLATE}],
        },
        "status": {
            "conditions": [
                {
                    "type": condition,
                    "status": status,
                    "lastTransitionTime": rfc3339(NOW),
                }
            ]
        },
    }


@pytest.mark.parametrize("kind", HELD)
def test_explain_and_its_list_show_one_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    take_snapshot = cluster_snapshot.take_snapshot
    monkeypatch.setattr(explain, "time", SimpleNamespace(time=lambda: NOW))
    monkeypatch.setattr(
        cluster_snapshot,
        "take_snapshot",
        lambda *request: replace(take_snapshot(*request), taken_s=NOW),
    )
    job = {
        "metadata": META | {"name": "train", "uid": "j"},
        "spec": {
            "suspend": True,
            "parallelism": 1,
            "template": TEMPLATE,
        },
        "status": {},
    }
    lists: dict[str, list[Object]] = {}
    for path in ("/api/v1/pods", "/api/v1/nodes", "/api/v1/events"):
        lists[path] = []
    lists |= {
        "/apis/batch/v1/jobs": [job],
        "/apis/kueue.x-k8s.io/v1beta2/workloads": [workload("QuotaReserved", HELD[kind])],
    }
    if kind == "flex queue":
        request = {
            "metadata": (
                META
                | {
                    "name": "ask",
                    "uid": "r",
                    "ownerReferences": [{"uid": "w"}],
                }
            ),
            "status": {},
        }
        lists["/apis/autoscaling.x-k8s.io/v1/provisioningrequests"] = [request]
    with serving(lists, tmp_path) as kubeconfig:
        api = Api(kubeconfig)
        (row,) = explain.rows(api, platforms.load("example"), prices.load())
        position = explain.explain(api, "train").cause.position
    assert (row.waited_s, f"for {WAITED_S} s" in position) == (WAITED_S, True), position


def test_chart_and_report_show_one_wait() -> None:
    """Prometheus' own engine asks the chart's query."""
    cluster = Cluster(clock=lambda: NOW)
    cluster.queues.workload("ADDED", workload("QuotaReserved", "False"))
    chart = next(chart for chart in on_call(()) if chart.title.startswith("Longest wait in"))
    ((_, query),) = chart.queries
    recorder: Any = Recorder(minute=1)
    writer = CloudWriter(recorder, "acme-ai", "us-central1", EXAMPLE["cluster"], clock=lambda: NOW)
    writer.write(list(cluster.samples(NOW)))
    recorder.minute = 2
    alert = Alert(
        name="Charted",
        severity=Severity.INFO,
        why="",
        query=fill(f"{query} == {WAITED_S}", EXAMPLE),
    )
    (firing,) = firings([alert], recorder)
    assert {("accelerator", "nvidia-l4"), ("queue", "spot")} <= set(firing.labels)
    cluster.queues.workload("MODIFIED", workload("Admitted", "True"))
    lines: list[bytes] = []
    for line in cluster.lines(NOW):
        lines.append(json.dumps(line).encode())
    report_capacities: Capacities = capacities(parse(lines).events)
    (wait,) = report_capacities.queue_waits
    assert wait.kind["queue"] == "spot"
    assert wait.kind["accelerator"] == "nvidia-l4"
    assert wait.n == 1
    assert wait.p50_s == WAITED_S
    assert wait.p95_s == WAITED_S
    assert wait.longest_s == WAITED_S
