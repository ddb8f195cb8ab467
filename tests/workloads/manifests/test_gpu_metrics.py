"""Tests of the exporter of GPU faults: its nodes, fields and priority."""

import csv
import re
from dataclasses import replace

import pytest

from holdfast.clients.api import Object
from holdfast.manifests.render_context import RenderContext
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import LABEL_ACCELERATOR
from monitoring.alerting import alert, alerts, dashboard
from tests.platforms import load
from tests.workloads.manifests.rendered import find_object
from workloads.manifests import gpu_metrics


def daemon(env: str) -> Object:
    return find_object(env, "DaemonSet", gpu_metrics.NAME)["spec"]


def read_fields(env: str) -> dict[str, str]:
    """Returns the kind of each field that is collected, by its name."""
    config = find_object(env, "ConfigMap", gpu_metrics.NAME, gpu_metrics.NAMESPACE)["data"]
    lines = config[gpu_metrics.CONFIG_FILE].splitlines()
    return {name: kind for name, kind, _ in csv.reader(lines, skipinitialspace=True)}


def list_alert_queries() -> list[str]:
    return [item.query for item in alerts.alerts(alert.EXAMPLE)]


def test_alerts_and_dashboards_read_exactly_the_collected_fields(env: str) -> None:
    queries = list_alert_queries()
    for chart in dashboard.on_call(()):
        for _, query in chart.queries:
            queries.append(alert.fill(query, alert.EXAMPLE))
    assert read_fields(env).keys() == set(re.findall(r"DCGM_\w+", "".join(queries)))


def test_counters_are_the_fields_read_as_rates() -> None:
    """Ensures that `> 0` is no query of a counter.

    Managed Prometheus subtracts a counter's first value, so it would miss an earlier error.
    """
    rates = re.findall(r"(?:rate|increase)\((DCGM_\w+)", "".join(list_alert_queries()))
    fields = read_fields("example")
    names = set()
    for name, kind in fields.items():
        if kind == "counter":
            names.add(name)
    assert names == set(rates)


def test_exporter_runs_on_gpu_nodes_only(env: str) -> None:
    spec = daemon(env)["template"]["spec"]
    affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    expression = {"key": LABEL_ACCELERATOR, "operator": "Exists"}
    assert affinity["nodeSelectorTerms"] == [{"matchExpressions": [expression]}]
    assert spec["tolerations"] == [{"operator": "Exists"}], "forks and ComputeClasses add taints"
    capacities: set[Capacity] = set()
    for pool in load(env).pools:
        has_label = LABEL_ACCELERATOR in pool.node_labels()
        assert has_label == bool(pool.gpus_per_node)
        if has_label:
            capacities.add(pool.capacity)
    assert Capacity.SPOT in capacities


def test_scraped_port_is_the_only_open_one() -> None:
    (endpoint,) = find_object("example", "PodMonitoring", gpu_metrics.NAME)["spec"]["endpoints"]
    (container,) = daemon("example")["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert port["name"] == endpoint["port"]
    (rule,) = find_object("example", "NetworkPolicy", "scrape", gpu_metrics.NAMESPACE)["spec"][
        "ingress"
    ]
    assert rule["ports"] == [{"port": port["containerPort"], "protocol": "TCP"}]
    selector = daemon("example")["selector"]
    assert find_object("example", "PodMonitoring", gpu_metrics.NAME)["spec"]["selector"] == selector


def test_exporter_has_lowest_priority_and_new_pods_for_new_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    platform = load("example")
    template = daemon("example")["template"]
    priority = platform.priorities[template["spec"]["priorityClassName"]]
    assert priority == min(platform.priorities.values())
    monkeypatch.setattr(gpu_metrics, "GPU_FIELDS", {"XID_ERRORS": ("gauge", "another text")})
    objects = {}
    for body in gpu_metrics.objects(RenderContext(platform)):
        objects[body["kind"]] = body
    new_template = objects["DaemonSet"]["spec"]["template"]
    assert new_template["metadata"]["annotations"] != template["metadata"]["annotations"]


def test_exporter_is_optional() -> None:
    platform = load("example")
    without = replace(platform, security=replace(platform.security, gpu_exporter=False))
    assert [*gpu_metrics.objects(RenderContext(without))] == []
