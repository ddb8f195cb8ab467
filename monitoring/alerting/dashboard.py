"""The dashboards of dashboards.toml as JSON.

Written in the form in which Google's own messages print it (no zeros, no defaults), so that what
the server returns equals what was sent and the second plan is empty; a test makes the round trip.
"""

import json
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from monitoring.alerting.alert import Values, filled

COLUMNS = 48
HALF = COLUMNS // 2
ROW = 14
POOL = "metadata_user_cloud_google_com_gke_nodepool"
_NODES = 'count(kubernetes_io:node_cpu_total_cores{{monitored_resource="k8s_node",cluster_name="$cluster",{label}="{pool}"}})'


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    title: str
    queries: tuple[tuple[str, str], ...] = ()
    """(legend, PromQL)"""
    unit: str = ""
    width: int = HALF
    threshold: float | str | None = None
    """A name is that of a value of the environment."""
    stacked: bool = False
    cost: bool = False
    """Its queries follow from the prices of the pools."""

    def widget(self, values: Values) -> dict[str, Any]:
        plot = "STACKED_AREA" if self.stacked else "LINE"
        chart: dict[str, Any] = {
            "dataSets": [
                {
                    "timeSeriesQuery": (
                        {"prometheusQuery": filled(query, values)}
                        | ({"unitOverride": self.unit} if self.unit else {})
                    ),
                    "plotType": plot,
                    "legendTemplate": legend,
                    "targetAxis": "Y1",
                }
                for legend, query in self.queries
            ],
            "yAxis": {"scale": "LINEAR"},
            "chartOptions": {"mode": "COLOR"},
        }
        if self.threshold is not None:
            value = values[self.threshold] if isinstance(self.threshold, str) else self.threshold
            chart["thresholds"] = [{"value": value, "targetAxis": "Y1"}]
        return {"title": self.title, "xyChart": chart}


@cache
def charts(screen: str) -> tuple[Chart, ...]:
    """Of `on_call`, `job` or `serving`."""
    listed = tomllib.loads(Path(__file__).with_name("dashboards.toml").read_text())[screen]
    return tuple(
        Chart(**each | {"queries": tuple(map(tuple, each.get("queries", ())))}) for each in listed
    )


def on_call(usd_by_pool: tuple[tuple[str, float], ...]) -> tuple[Chart, ...]:
    """`usd_by_pool`: dollars an hour of one node, by the price table of the day on which this was
    deployed.
    """
    costs = tuple(
        (pool, f"{_NODES.format(label=POOL, pool=pool)} * {usd:g}") for pool, usd in usd_by_pool
    )
    shown = (replace(chart, queries=costs) if chart.cost else chart for chart in charts("on_call"))
    return tuple(chart for chart in shown if chart.queries)


def render(
    title: str,
    charts: tuple[Chart, ...],
    labels: dict[str, str],
    values: Values,
    *,
    choose: str = "",
) -> str:
    """A mosaic filled row by row; a tile at the edge has no zero, as the server would drop it.

    `choose`: a metric label that the viewer picks a value of; queries refer to it as
    ${label.value}.
    """
    tiles: list[dict[str, Any]] = []
    x = y = 0
    for chart in charts:
        if x + chart.width > COLUMNS:
            x = 0
            y = y + ROW
        place = {
            "xPos": x,
            "yPos": y,
            "width": chart.width,
            "height": ROW,
        }
        tiles.append(
            {key: value for key, value in place.items() if value} | {"widget": chart.widget(values)}
        )
        x += chart.width
    layout: dict[str, Any] = {
        "displayName": filled(title, values),
        "labels": labels,
    }
    layout["mosaicLayout"] = {"columns": COLUMNS, "tiles": tiles}
    if choose:
        layout["dashboardFilters"] = [
            {
                "filterType": "METRIC_LABEL",
                "labelKey": choose,
                "templateVariable": choose,
            }
        ]
    return json.dumps(layout, indent=2, sort_keys=True)
