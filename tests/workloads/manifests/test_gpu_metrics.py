"""The exporter of GPU faults: it is on every GPU node, and collects what alerts and dashboards
read.
"""

import csv
import re
from dataclasses import replace
from typing import Any

import pytest

from holdfast.manifests.render_context import RenderContext
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import LABEL_ACCELERATOR
from monitoring.alerting import alert, alerts, dashboard
from tests.platforms import load
from tests.workloads.manifests.rendered import named
from workloads.manifests import gpu_metrics


def daemon(env: str) -> dict[str, Any]:
    return named(env, "DaemonSet", gpu_metrics.NAME)["spec"]


def collected(env: str) -> list[list[str]]:
    text = named(env, "ConfigMap", gpu_metrics.NAME, gpu_metrics.NAMESPACE)["data"][
        gpu_metrics.CONFIG_FILE
    ]
    return [*csv.reader(text.splitlines(), skipinitialspace=True)]


def test_exactly_what_alerts_and_dashboards_read_is_collected(env: str) -> None:
    read = [each.query for each in alerts.alerts(alert.EXAMPLE)]
    read += [
        alert.filled(query, alert.EXAMPLE)
        for chart in dashboard.on_call(())
        for _, query in chart.queries
    ]
    assert {name for name, _, _ in collected(env)} == {*re.findall(r"DCGM_\w+", "".join(read))}


def test_only_what_an_alert_reads_as_a_rate_is_a_counter() -> None:
    """Managed Prometheus subtracts a counter's first value: `> 0` would overlook an error from
    before.
    """
    rates = re.findall(
        r"(?:rate|increase)\((DCGM_\w+)",
        "".join(each.query for each in alerts.alerts(alert.EXAMPLE)),
    )
    assert {name for name, kind, _ in collected("example") if kind == "counter"} == {*rates}


def test_it_runs_on_every_gpu_node_and_on_no_other(env: str) -> None:
    spec = daemon(env)["template"]["spec"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {"matchExpressions": [{"key": LABEL_ACCELERATOR, "operator": "Exists"}]}
    assert spec["tolerations"] == [{"operator": "Exists"}], (
        "a fork adds taints, and so do ComputeClasses"
    )
    pools = load(env).pools
    assert {pool.capacity for pool in pools if LABEL_ACCELERATOR in pool.node_labels()} >= {
        Capacity.SPOT
    }
    assert all(
        (LABEL_ACCELERATOR in pool.node_labels()) == bool(pool.gpus_per_node) for pool in pools
    )


def test_its_pods_are_scraped_through_the_only_open_port() -> None:
    (endpoint,) = named("example", "PodMonitoring", gpu_metrics.NAME)["spec"]["endpoints"]
    (container,) = daemon("example")["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert port["name"] == endpoint["port"]
    (rule,) = named("example", "NetworkPolicy", "scrape", gpu_metrics.NAMESPACE)["spec"]["ingress"]
    assert rule["ports"] == [{"port": port["containerPort"], "protocol": "TCP"}]
    own = daemon("example")["selector"]
    assert named("example", "PodMonitoring", gpu_metrics.NAME)["spec"]["selector"] == own


def test_it_never_pushes_a_job_out_and_pods_follow_a_change_of_its_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    platform = load("example")
    template = daemon("example")["template"]
    assert platform.priorities[template["spec"]["priorityClassName"]] == min(
        platform.priorities.values()
    )
    monkeypatch.setattr(gpu_metrics, "GPU_FIELDS", {"XID_ERRORS": ("gauge", "another text")})
    (other,) = (b for b in gpu_metrics.objects(RenderContext(platform)) if b["kind"] == "DaemonSet")
    assert (
        other["spec"]["template"]["metadata"]["annotations"] != template["metadata"]["annotations"]
    )


def test_it_can_be_left_out() -> None:
    platform = load("example")
    without = replace(platform, security=replace(platform.security, gpu_exporter=False))
    assert [*gpu_metrics.objects(RenderContext(without))] == []
