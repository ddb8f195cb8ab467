"""The dashboards as JSON: one screen for the person on call, one for a job.

Written in the form in which Google's own messages print it (no zeros, no defaults), so that
what the server returns equals what was sent and the second plan is empty; a test makes the round trip.
"""

import json
from dataclasses import dataclass
from typing import Any

from holdfast.contract.kubernetes import KUEUE_ADMISSION_WAIT, KUEUE_PENDING, preemptions
from monitoring.alerting.alert import DEAD_LETTERS, DUTY_CYCLE, Values, dcgm, filled, ours

COLUMNS = 48
HALF, THIRD = COLUMNS // 2, COLUMNS // 3
ROW = 14
_NODES = 'kubernetes_io:node_cpu_total_cores{monitored_resource="k8s_node",cluster_name="$cluster"}'


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    title: str
    queries: tuple[tuple[str, str], ...]
    """(legend, PromQL)"""
    unit: str = ""
    width: int = HALF
    threshold: float | None = None
    stacked: bool = False

    def widget(self) -> dict[str, Any]:
        plot = "STACKED_AREA" if self.stacked else "LINE"
        chart: dict[str, Any] = {
            "dataSets": [
                {
                    "timeSeriesQuery": {"prometheusQuery": query} | ({"unitOverride": self.unit} if self.unit else {}),
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
            chart["thresholds"] = [{"value": self.threshold, "targetAxis": "Y1"}]
        return {"title": self.title, "xyChart": chart}


def render(title: str, charts: tuple[Chart, ...], labels: dict[str, str], values: Values, *, choose: str = "") -> str:
    """A mosaic filled row by row; a tile at the edge has no zero, as the server would drop it.

    `choose`: a metric label that the viewer picks a value of; queries refer to it as ${label.value}.
    """
    tiles: list[dict[str, Any]] = []
    x = y = 0
    for chart in charts:
        if x + chart.width > COLUMNS:
            x, y = 0, y + ROW
        place = {"xPos": x, "yPos": y, "width": chart.width, "height": ROW}
        tiles.append({key: value for key, value in place.items() if value} | {"widget": chart.widget()})
        x += chart.width
    layout: dict[str, Any] = {"displayName": title, "labels": labels}
    layout["mosaicLayout"] = {"columns": COLUMNS, "tiles": tiles}
    if choose:
        layout["dashboardFilters"] = [{"filterType": "METRIC_LABEL", "labelKey": choose, "templateVariable": choose}]
    return filled(json.dumps(layout, indent=2, sort_keys=True), values)


def on_call(goodput_min: float, usd_by_pool: tuple[tuple[str, float], ...]) -> tuple[Chart, ...]:
    """`usd_by_pool`: dollars an hour of one node, by the price table of the day on which this was deployed."""
    lost = preemptions("$cluster")
    by_pool = "{{metadata_user_cloud_google_com_gke_nodepool}}"
    return (
        Chart(
            title="Nodes by pool",
            queries=((by_pool, f"count by (metadata_user_cloud_google_com_gke_nodepool) ({_NODES})"),),
            stacked=True,
        ),
        Chart(
            title="Longest pending time; gangs below full size",
            queries=(
                (
                    "{{capacity}} {{accelerator}}",
                    f"max by (capacity, accelerator) ({ours('pending_seconds')})",
                ),
                ("gang {{namespace}}/{{job}}", ours("gang_below_size_seconds")),
            ),
            unit="s",
        ),
        *_queues(),
        Chart(
            title="Preemptions per hour",
            queries=(
                ("{{node_pool_name}}", f"sum by (node_pool_name) (sum_over_time({lost}[1h]))"),
                ("exporter {{pool}}", f"sum by (pool) (increase({ours('preemptions_total')}[1h]))"),
            ),
        ),
        Chart(
            title="Useful share of machine time",
            queries=(("{{namespace}}/{{job}} {{index}}", ours("useful_paid_ratio")),),
            threshold=goodput_min,
        ),
        Chart(
            title="Age of the newest checkpoint",
            queries=(("{{namespace}}/{{job}}", ours("last_commit_age_seconds")),),
            unit="s",
        ),
        Chart(
            title="Batch backlog",
            queries=(("{{job}}", ours("batch_backlog_items")), ("dead letters", DEAD_LETTERS)),
        ),
        *_moves(),
        *_gpus(),
        *_cost(usd_by_pool),
        Chart(title="Oldest item", queries=(("{{job}}", ours("batch_oldest_seconds")),), unit="s", width=THIRD),
        Chart(
            title="System pods on preemptible nodes",
            queries=(("{{namespace}}", ours("system_pods_on_interruptible")),),
            width=THIRD,
        ),
        Chart(
            title="Seconds since the exporter's last pass",
            queries=(("age", f"time() - max({ours('exporter_heartbeat_seconds')})"),),
            unit="s",
            width=THIRD,
        ),
    )


def _queues() -> tuple[Chart, ...]:
    """What waits without a pod."""
    waits = ours("queue_wait_seconds")
    states = tuple(
        (f"{state} {{{{queue}}}}", f"max by (queue) ({ours(f'queue_{state}_workloads')})")
        for state in ("pending", "started")
    )
    return (
        Chart(
            title="Longest wait in a queue",
            queries=(("{{queue}} {{accelerator}} {{reason}}", f"max by (queue, accelerator, reason) ({waits})"),),
            unit="s",
        ),
        Chart(title="Jobs in queues", queries=states),
        *_kueue(),
    )


_NAME = '{cluster="$cluster"}'


def _kueue() -> tuple[Chart, ...]:
    """As Kueue itself counts, in addition to the exporter."""
    waited = f"sum by (cluster_queue, le) (rate({KUEUE_ADMISSION_WAIT}_bucket{_NAME}[1h]))"
    return (
        Chart(
            title="Queue wait of admitted jobs",
            queries=tuple(
                (f"p{percent} {{{{cluster_queue}}}}", f"histogram_quantile({percent / 100:g}, {waited})")
                for percent in (50, 95)
            ),
            unit="s",
        ),
        Chart(
            title="Jobs held by Kueue",
            queries=(("{{status}} {{cluster_queue}}", f"max by (cluster_queue, status) ({KUEUE_PENDING}{_NAME})"),),
        ),
    )


def _moves() -> tuple[Chart, ...]:
    """What jobs with a deadline did, and what no account of a job could use."""
    refused = ours("event_lines_refused_total")
    return (
        Chart(
            title="Slack of jobs with a deadline",
            queries=(("{{namespace}}/{{job}}", ours("placement_slack_seconds")),),
            unit="s",
            width=THIRD,
        ),
        Chart(
            title="Moves between capacities per hour",
            queries=(
                ("{{namespace}}/{{job}}", f"sum by (namespace, job) (increase({ours('placement_moves_total')}[1h]))"),
            ),
            width=THIRD,
        ),
        Chart(
            title="Event lines rejected per hour",
            queries=(
                ("{{namespace}}/{{job}} {{reason}}", f"sum by (namespace, job, reason) (increase({refused}[1h]))"),
            ),
            width=THIRD,
        ),
    )


def _gpus() -> tuple[Chart, ...]:
    return (
        Chart(
            title="GPU use by pod",
            queries=(("{{pod_name}}", f"max by (pod_name) ({DUTY_CYCLE})"),),
            unit="%",
        ),
        Chart(
            title="GPU faults",
            queries=(
                ("last Xid {{Hostname}} {{gpu}}", dcgm("XID_ERRORS")),
                ("double-bit errors {{Hostname}} {{gpu}}", dcgm("ECC_DBE_VOL_TOTAL")),
                ("Spot nodes {{answer}} for {{fault}}", f"sum by (answer, fault) ({ours('gpu_faults_total')})"),
            ),
        ),
    )


def _cost(usd_by_pool: tuple[tuple[str, float], ...]) -> tuple[Chart, ...]:
    """Nodes times price; an invoice comes a day later and knows no pools."""
    if not usd_by_pool:
        return ()
    label = "metadata_user_cloud_google_com_gke_nodepool"
    queries = tuple(
        (pool, f'count({_NODES.removesuffix("}")},{label}="{pool}"}}) * {usd:g}') for pool, usd in usd_by_pool
    )
    return (
        Chart(title="Cost of GPU pools (dollars per hour)", queries=queries, unit="USD/h", stacked=True, width=COLUMNS),
    )


def one_job() -> tuple[Chart, ...]:
    """The same screen for every job: choose it in the dashboard's filter."""
    job = 'job=~"$${job.value}"'
    return (
        Chart(title="Useful share", queries=(("{{namespace}}/{{job}}", ours("goodput_ratio", job)),)),
        Chart(
            title="Checkpoint age and usual interval",
            queries=(
                ("age {{namespace}}/{{job}}", ours("last_commit_age_seconds", job)),
                ("interval {{namespace}}/{{job}}", ours("commit_interval_seconds", job)),
            ),
            unit="s",
        ),
        Chart(
            title="Consecutive crashes without a checkpoint",
            queries=(("{{namespace}}/{{job}}", ours("fruitless_restarts", job)),),
        ),
        Chart(
            title="Time until the planned end of the nodes",
            queries=(("{{namespace}}/{{job}}", ours("node_end_seconds", job)),),
            unit="s",
        ),
    )
