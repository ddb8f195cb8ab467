"""The dashboards of dashboards.toml as JSON.

The JSON has the form of Google's own messages (no zeros, no defaults), so that the server returns
what was sent and the second plan is empty; a test makes the round trip.
"""

import json
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from monitoring.alerting.alert import Values, fill

COLUMNS = 48
HALF = COLUMNS // 2
ROW = 14
POOL = "metadata_user_cloud_google_com_gke_nodepool"
_NODES = (
    'count(kubernetes_io:node_cpu_total_cores{{monitored_resource="k8s_node",'
    'cluster_name="$cluster",{label}="{pool}"}})'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    title: str
    queries: tuple[tuple[str, str], ...] = ()
    """Pairs of legend and PromQL."""
    unit: str = ""
    width: int = HALF
    threshold: float | str | None = None
    """A number, or the name of a value of the environment."""
    stacked: bool = False
    cost: bool = False
    """True: the queries follow from the prices of the pools."""

    def widget(self, values: Values) -> dict[str, Any]:
        """Return the widget as JSON, with `values` in its queries."""
        data_sets = []
        for legend, query in self.queries:
            data_sets.append(self._data_set(legend, fill(query, values)))
        chart: dict[str, Any] = {
            "dataSets": data_sets,
            "yAxis": {"scale": "LINEAR"},
            "chartOptions": {"mode": "COLOR"},
        }
        if self.threshold is not None:
            value = values[self.threshold] if isinstance(self.threshold, str) else self.threshold
            chart["thresholds"] = [{"value": value, "targetAxis": "Y1"}]
        return {"title": self.title, "xyChart": chart}

    def _data_set(self, legend: str, query: str) -> dict[str, Any]:
        time_series = {"prometheusQuery": query}
        if self.unit:
            time_series["unitOverride"] = self.unit
        return {
            "timeSeriesQuery": time_series,
            "plotType": "STACKED_AREA" if self.stacked else "LINE",
            "legendTemplate": legend,
            "targetAxis": "Y1",
        }


@cache
def charts(screen: str) -> tuple[Chart, ...]:
    """Return the charts of `on_call`, `job` or `serving`."""
    tables = tomllib.loads(Path(__file__).with_name("dashboards.toml").read_text())[screen]
    screen_charts = []
    for table in tables:
        queries = tuple(tuple(pair) for pair in table.get("queries", ()))
        screen_charts.append(Chart(**table | {"queries": queries}))
    return tuple(screen_charts)


def on_call(usd_by_pool: tuple[tuple[str, float], ...]) -> tuple[Chart, ...]:
    """Return the charts of `on_call`. `usd_by_pool`: dollars an hour of one node, by the price
    table on the day of the deployment.
    """
    costs = []
    for pool, usd in usd_by_pool:
        costs.append((pool, f"{_NODES.format(label=POOL, pool=pool)} * {usd:g}"))
    screen_charts = []
    for chart in charts("on_call"):
        priced = replace(chart, queries=tuple(costs)) if chart.cost else chart
        if priced.queries:
            screen_charts.append(priced)
    return tuple(screen_charts)


def render(
    title: str,
    charts: tuple[Chart, ...],
    labels: dict[str, str],
    values: Values,
    *,
    choose: str = "",
) -> str:
    """Return a mosaic that is filled row by row. Positions of zero are left out, as the server
    does.

    `choose`: a metric label whose value the viewer selects; queries refer to it as ${label.value}.
    """
    tiles: list[dict[str, Any]] = []
    x = 0
    y = 0
    for chart in charts:
        if x + chart.width > COLUMNS:
            x = 0
            y = y + ROW
        tile: dict[str, Any] = {
            "width": chart.width,
            "height": ROW,
            "widget": chart.widget(values),
        }
        if x:
            tile["xPos"] = x
        if y:
            tile["yPos"] = y
        tiles.append(tile)
        x += chart.width
    layout: dict[str, Any] = {
        "displayName": fill(title, values),
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
