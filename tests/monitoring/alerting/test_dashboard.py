"""Google's messages print dashboards as they are sent, so that the second plan changes nothing."""

import json
import re

import pytest
from google.cloud.monitoring_dashboard_v1 import Dashboard

from holdfast.vocabulary.kubernetes import KUEUE_METRICS
from holdfast.vocabulary.serving import ROUTER_METRICS, SERVER_METRICS
from holdfast.vocabulary.telemetry import METRICS
from monitoring.alerting import dashboard
from monitoring.alerting.alert import EXAMPLE
from monitoring.alerting.alerts import alerts
from tests.workloads.manifests import rendered

VALUES = {
    **EXAMPLE,
    "failed_share": 0.0144,
    "inflight_target": 24,
    "promised_per_s": 100.0,
}
COSTS = (("spot-l4", 0.34), ("flex-a100", 2.02))
CHARTS = {
    "on-call": dashboard.on_call(COSTS),
    "job": dashboard.charts("job"),
    "serving": dashboard.charts("serving"),
}
SCREENS: dict[str, str] = {}
for _name, _charts in CHARTS.items():
    SCREENS[_name] = dashboard.render(
        f"c: {_name}",
        _charts,
        {"environment": "e"},
        VALUES,
        choose="job" if _name == "job" else "",
    )


@pytest.mark.parametrize("text", SCREENS.values(), ids=SCREENS)
def test_a_round_trip_through_the_api_message_changes_nothing(text: str) -> None:
    message = Dashboard.from_json(text)  # an unknown field is an error
    returned = json.loads(
        Dashboard.to_json(
            message, use_integers_for_enums=False, always_print_fields_with_no_presence=False
        )
    )
    assert returned == json.loads(text)


@pytest.mark.parametrize("text", SCREENS.values(), ids=SCREENS)
def test_tiles_fill_the_screen_without_overlap(text: str) -> None:
    taken: set[tuple[int, int]] = set()
    for tile in json.loads(text)["mosaicLayout"]["tiles"]:
        x = tile.get("xPos", 0)
        y = tile.get("yPos", 0)
        cells = set()
        for i in range(x, x + tile["width"]):
            for j in range(y, y + tile["height"]):
                cells.add((i, j))
        assert not cells & taken
        assert x + tile["width"] <= dashboard.COLUMNS
        taken |= cells


def test_hourly_cost_is_nodes_times_price() -> None:
    tiles = json.loads(SCREENS["on-call"])["mosaicLayout"]["tiles"]
    [tile] = [tile for tile in tiles if "Cost" in tile["widget"]["title"]]
    first_set, second_set = tile["widget"]["xyChart"]["dataSets"]
    first = first_set["timeSeriesQuery"]["prometheusQuery"]
    second = second_set["timeSeriesQuery"]["prometheusQuery"]
    assert 'nodepool="spot-l4"}) * 0.34' in first
    assert 'nodepool="flex-a100"}) * 2.02' in second


def test_every_metric_that_somebody_is_woken_by_can_be_seen() -> None:
    """Our metrics have a chart, except those whose alert says everything."""
    shown = set(re.findall(r"holdfast_(\w+)", "".join(SCREENS.values())))
    queries = "".join(alert.query for alert in alerts(EXAMPLE))
    metrics = set(re.findall(r"holdfast_(\w+)", queries))
    quiet = {
        "provisioning_requests_lost_total",
        "restores_skipped_total",
        "dead_letters_total",
        "batch_failures_total",
        "disruption_budget_shortfall",
        "silent_node_pods",
        "loss_not_finite",
        "slowest_rank_ratio",
    }
    assert metrics - shown == quiet
    of_servers = set()
    for name in (*SERVER_METRICS, *ROUTER_METRICS):
        of_servers.add(name.removeprefix("holdfast_"))
    assert {name.removesuffix("_bucket") for name in shown | metrics} <= set(METRICS) | of_servers
    # An autoscaler's query is in what is rendered for it.
    scaled = set(re.findall(r"holdfast_(\w+)", str(rendered.load_objects("example")))) & set(
        METRICS
    )
    of_churn = {
        "spot_node_seconds_total",
        "spot_node_losses_total",
    }  # `holdfast place churn --project`
    assert set(METRICS) <= shown | metrics | scaled | of_churn, (
        "nothing is exported that nobody reads"
    )


def test_dashboards_show_all_collected_kueue_metrics() -> None:
    (scraped,) = (
        b
        for b in rendered.load_objects("example")
        if b["metadata"]["name"] == "kueue-metrics" and b["kind"] == "PodMonitoring"
    )
    (endpoint,) = scraped["spec"]["endpoints"]
    (pattern,) = (rule["regex"] for rule in endpoint["metricRelabeling"])
    shown = set(re.findall(r"kueue_\w+", "".join(SCREENS.values())))
    for name in shown:
        assert re.fullmatch(pattern, name)
    assert {name.removesuffix("_bucket") for name in shown} == set(KUEUE_METRICS)
