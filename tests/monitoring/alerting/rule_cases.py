"""For each alert bad and good histories: what `make test-alert` plays and what the tests hold the queries to."""

from monitoring.alerting.alert import EXAMPLE
from monitoring.alerting.rule_test import History
from tests.monitoring.alerting.rule_cases_capacity import CAPACITY
from tests.monitoring.alerting.rule_cases_jobs import JOBS
from tests.monitoring.alerting.rule_cases_serving import SERVING
from tests.monitoring.alerting.rule_series import OTHER, labels, lost, ours


def _pending(capacity: str, limit_min: int) -> tuple[History, ...]:
    series = ours("pending_seconds", f'capacity="{capacity}",accelerator="nvidia-l4"')
    other = ours("pending_seconds", f'capacity="{capacity}x",accelerator="nvidia-l4"')
    waiting = f"0+60x{limit_min + 30}"
    due, fires = limit_min + 8, labels(accelerator="nvidia-l4")
    almost = f"0+60x{limit_min - 1} {(limit_min - 1) * 60}x60"
    return (
        History(series=((series, waiting),), at_min=due, fires=fires, quiet_until_min=limit_min + 4),
        # A gap of three minutes is bridged by the look-back.
        History(
            series=((series, f"0+60x{limit_min + 2} _x3 {60 * (limit_min + 6)}+60x9"),), at_min=due + 2, fires=fires
        ),
        History(series=((series, almost), (other, f"{limit_min * 600}x90")), at_min=limit_min + 40),
        History(series=((ours("pending_seconds", f'capacity="{capacity}"', OTHER), "999999x90"),), at_min=60),
    )


_COUNTED = ours("preemptions_total", 'pool="spot-l4",zone="a"')
CASES: dict[str, tuple[History, ...]] = {
    "HoldfastSpotPreemptionsAboveUsual": (
        # Seven in an hour, one every eight minutes; the series begins with the first loss ever.
        History(
            series=((lost("spot-l4"), "_x5 1 _x7 1 _x7 1 _x7 1 _x7 1 _x7 1 _x7 1"),),
            at_min=54,
            fires=labels(node_pool_name="spot-l4"),
            quiet_until_min=50,
        ),
        History(series=((lost("spot-l4"), "_x5 7 _x30"),), at_min=20, fires=labels(node_pool_name="spot-l4")),
        History(
            series=(
                (lost("spot-l4"), "1 _x9 1 _x9 1 _x9 1 _x9 1 _x9 1 _x9"),  # six, the usual
                (lost("spot-a100"), "3x1"),  # pools are judged alone
                (lost("spot-l4", reason="AutoResize"), "1x59"),  # scaling down is no loss
                (lost("spot-l4", kind="MaintenanceEvent"), "1x59"),
                (lost("spot-l4", cluster=OTHER), "1x59"),
            ),
            at_min=59,
        ),
        History(series=((lost("spot-l4"), "7 _x90"),), at_min=75),  # an hour later it is over
    ),
    "HoldfastSpotPreemptionBurst": (
        History(
            series=((lost("spot-l4"), "_x20 2 2 1 2"),),
            at_min=23,
            fires=labels(node_pool_name="spot-l4"),
            quiet_until_min=22,
        ),
        History(
            series=(
                (lost("spot-l4"), "1 _x8 1 _x8 1 _x8 1 _x8 1 _x8 1 _x8 1"),
                (lost("x", reason="AutoResize"), "9x60"),
            ),
            at_min=54,
        ),
        History(
            series=((lost("spot-l4", cluster=OTHER), "9x60"), (lost("x", kind="TerminationEvent"), "9x60")), at_min=30
        ),
        History(series=((lost("spot-l4"), "1 1 1 1 1 1 _x30"),), at_min=8),
        History(series=((lost("spot-l4"), "_x20 1 1 1 _x3 2 2"),), at_min=27, fires=labels(node_pool_name="spot-l4")),
        History(series=((lost("spot-l4"), "4 _x13 4"),), at_min=14),
    ),
    "HoldfastOnDemandPendingTooLong": _pending("on-demand", 10),
    "HoldfastSpotPendingTooLong": _pending("spot", 30),
    "HoldfastFlexStartWaitTooLong": _pending("flex-start", 240),
    **CAPACITY,
    **JOBS,
    **SERVING,
    "HoldfastSystemPodsOnSpot": (
        History(
            series=((ours("system_pods_on_interruptible", 'namespace="kube-system"'), "0x5 1x30"),),
            at_min=17,
            fires=labels(namespace="kube-system"),
            quiet_until_min=13,
        ),
        History(
            series=(
                (ours("system_pods_on_interruptible", 'namespace="kube-system"'), "0x5 1x8 0x30"),
                (ours("system_pods_on_interruptible", 'namespace="kube-system"', OTHER), "4x60"),
            ),
            at_min=40,
        ),
    ),
    "HoldfastSilentNodeHoldsPods": (
        History(
            series=((ours("silent_node_pods", 'namespace="training"'), "0x5 1x20"),),
            at_min=12,
            fires=labels(namespace="training"),
            quiet_until_min=9,
        ),
        History(
            series=(
                (ours("silent_node_pods", 'namespace="training"'), "0x5 2x3 0x20"),
                (ours("silent_node_pods", 'namespace="batch"', OTHER), "4x60"),
            ),
            at_min=20,
        ),
    ),
    "HoldfastDisruptionBudgetViolated": (
        History(
            series=((ours("disruption_budget_shortfall", 'namespace="serving",budget="server"'), "0x5 1x30"),),
            at_min=17,
            fires=labels(namespace="serving", budget="server"),
            quiet_until_min=13,
        ),
        History(
            series=(
                (ours("disruption_budget_shortfall", 'namespace="serving",budget="server"'), "1x9 0x30"),
                (ours("disruption_budget_shortfall", 'namespace="serving",budget="b"', OTHER), "4x60"),
            ),
            at_min=30,
        ),
    ),
    "HoldfastPreemptionCountsDisagree": (
        History(  # GKE lost four, the exporter none
            series=((lost("spot-l4"), "_x5 4 _x80"),), at_min=70, fires=labels(), quiet_until_min=60
        ),
        History(series=((_COUNTED, "0x5 4x80"),), at_min=70, fires=labels()),  # and the other way
        History(series=((lost("spot-l4"), "_x5 4 _x120"),), at_min=110, fires=labels()),
        History(series=((_COUNTED, "0x5 4x120"),), at_min=110, fires=labels()),
        History(series=((lost("spot-l4"), "_x5 9 _x210"),), at_min=200),  # hours ago
        History(series=((_COUNTED, "0x5 9x210"),), at_min=200),
        History(
            series=(
                (lost("spot-l4"), "_x5 9 _x110"),
                (_COUNTED, "0x8 6x110"),  # three apart is no disagreement yet
                (lost("spot-l4", reason="AutoResize"), "9x110"),
                (lost("spot-l4", cluster=OTHER), "9x110"),
                (ours("preemptions_total", 'pool="spot-l4",zone="a"', OTHER), "0x5 90x110"),
            ),
            at_min=100,
        ),
    ),
    "HoldfastMonitoringSilent": (
        History(  # dead: the series ends
            series=((ours("exporter_heartbeat_seconds"), "0+60x20"),),
            at_min=33,
            fires=labels(cluster_name=EXAMPLE["cluster"]),
            quiet_until_min=24,
        ),
        History(  # stuck: it is scraped, but no pass ends any more
            series=((ours("exporter_heartbeat_seconds"), "0+60x20 1200x30"),),
            at_min=33,
            fires=labels(cluster_name=EXAMPLE["cluster"]),
            quiet_until_min=29,
        ),
        # Never there: what an empty project shows, and what the heartbeat of another cluster must not hide.
        History(
            series=((ours("exporter_heartbeat_seconds", "", OTHER), "0+60x90"),),
            at_min=12,
            fires=labels(cluster_name=EXAMPLE["cluster"]),
        ),
        History(series=((ours("exporter_heartbeat_seconds"), "0+60x20 _x9 1800+60x40"),), at_min=29),
    ),
}
