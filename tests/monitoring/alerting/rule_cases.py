"""Bad and good histories for each alert: `make test-alert` plays them, and tests compare the
queries with them.
"""

from tests.monitoring.alerting.promtool import History
from tests.monitoring.alerting.rule_cases_capacity import CAPACITY
from tests.monitoring.alerting.rule_cases_jobs import JOBS
from tests.monitoring.alerting.rule_cases_serving import SERVING
from tests.monitoring.alerting.rule_series import (
    OTHER,
    gauge,
    here,
    interruptions,
    labels,
    make_history,
    ours,
)


def _pending(capacity: str, limit_min: int) -> tuple[History, ...]:
    series = ours("pending_seconds", f'capacity="{capacity}",accelerator="nvidia-l4"')
    other = ours("pending_seconds", f'capacity="{capacity}x",accelerator="nvidia-l4"')
    waiting = f"0+60x{limit_min + 30}"
    due = limit_min + 8
    fires = labels(accelerator="nvidia-l4")
    almost = f"0+60x{limit_min - 1} {(limit_min - 1) * 60}x60"
    return (
        make_history(
            (series, waiting),
            at=due,
            fires=fires,
            quiet=limit_min + 4,
        ),
        # A gap of three minutes is bridged by the look-back.
        make_history(
            (series, f"0+60x{limit_min + 2} _x3 {60 * (limit_min + 6)}+60x9"),
            at=due + 2,
            fires=fires,
        ),
        make_history((series, almost), (other, f"{limit_min * 600}x90"), at=limit_min + 40),
        make_history(
            (ours("pending_seconds", f'capacity="{capacity}"', OTHER), "999999x90"), at=60
        ),
    )


_LOST = labels(node_pool_name="spot-l4")
_COUNTED = ours("preemptions_total", 'pool="spot-l4",zone="a"')
CASES: dict[str, tuple[History, ...]] = {
    "HoldfastSpotPreemptionsAboveUsual": (
        # Seven in an hour, one every eight minutes; the series begins with the first loss ever.
        make_history(
            (interruptions("spot-l4"), "_x5 1 _x7 1 _x7 1 _x7 1 _x7 1 _x7 1 _x7 1"),
            at=54,
            fires=_LOST,
            quiet=50,
        ),
        make_history((interruptions("spot-l4"), "_x5 7 _x30"), at=20, fires=_LOST),
        make_history(
            (interruptions("spot-l4"), "1 _x9 1 _x9 1 _x9 1 _x9 1 _x9 1 _x9"),  # six, the usual
            (interruptions("spot-a100"), "3x1"),  # pools are judged alone
            (interruptions("spot-l4", reason="AutoResize"), "1x59"),  # scaling down is no loss
            (interruptions("spot-l4", kind="MaintenanceEvent"), "1x59"),
            (interruptions("spot-l4", cluster=OTHER), "1x59"),
            at=59,
        ),
        make_history((interruptions("spot-l4"), "7 _x90"), at=75),  # an hour later it is over
    ),
    "HoldfastSpotPreemptionBurst": (
        make_history(
            (interruptions("spot-l4"), "_x20 2 2 1 2"),
            at=23,
            fires=_LOST,
            quiet=22,
        ),
        make_history(
            (interruptions("spot-l4"), "1 _x8 1 _x8 1 _x8 1 _x8 1 _x8 1 _x8 1"),
            (interruptions("x", reason="AutoResize"), "9x60"),
            at=54,
        ),
        make_history(
            (interruptions("spot-l4", cluster=OTHER), "9x60"),
            (interruptions("x", kind="TerminationEvent"), "9x60"),
            at=30,
        ),
        make_history((interruptions("spot-l4"), "1 1 1 1 1 1 _x30"), at=8),
        make_history((interruptions("spot-l4"), "_x20 1 1 1 _x3 2 2"), at=27, fires=_LOST),
        make_history((interruptions("spot-l4"), "4 _x13 4"), at=14),
    ),
    "HoldfastOnDemandPendingTooLong": _pending("on-demand", 10),
    "HoldfastSpotPendingTooLong": _pending("spot", 30),
    "HoldfastFlexStartWaitTooLong": _pending("flex-start", 240),
    **CAPACITY,
    **JOBS,
    **SERVING,
    "HoldfastSystemPodsOnSpot": gauge(
        "system_pods_on_interruptible",
        "0x5 1x30",
        "0x5 1x8 0x30",
        quiet=13,
        at=17,
        end=40,
        namespace="kube-system",
    ),
    "HoldfastSilentNodeHoldsPods": gauge(
        "silent_node_pods",
        "0x5 1x20",
        "0x5 2x3 0x20",
        quiet=9,
        at=12,
        end=20,
        namespace="training",
    ),
    "HoldfastDisruptionBudgetViolated": gauge(
        "disruption_budget_shortfall",
        "0x5 1x30",
        "1x9 0x30",
        quiet=13,
        at=17,
        end=30,
        namespace="serving",
        budget="s",
    ),
    "HoldfastPreemptionCountsDisagree": (
        # GKE lost four, the exporter none
        make_history(
            (interruptions("spot-l4"), "_x5 4 _x80"),
            at=70,
            fires=labels(),
            quiet=60,
        ),
        make_history((_COUNTED, "0x5 4x80"), at=70, fires=labels()),  # and the other way
        make_history((interruptions("spot-l4"), "_x5 4 _x120"), at=110, fires=labels()),
        make_history((_COUNTED, "0x5 4x120"), at=110, fires=labels()),
        make_history((interruptions("spot-l4"), "_x5 9 _x210"), at=200),  # hours ago
        make_history((_COUNTED, "0x5 9x210"), at=200),
        make_history(
            (interruptions("spot-l4"), "_x5 9 _x110"),
            (_COUNTED, "0x8 6x110"),  # three apart is no disagreement yet
            (interruptions("spot-l4", reason="AutoResize"), "9x110"),
            (interruptions("spot-l4", cluster=OTHER), "9x110"),
            (ours("preemptions_total", 'pool="spot-l4",zone="a"', OTHER), "0x5 90x110"),
            at=100,
        ),
    ),
    "HoldfastMonitoringSilent": (
        # dead: the series ends
        make_history(
            (ours("exporter_heartbeat_seconds"), "0+60x20"),
            at=33,
            fires=here(),
            quiet=24,
        ),
        # stuck: it is scraped, but no pass ends any more
        make_history(
            (ours("exporter_heartbeat_seconds"), "0+60x20 1200x30"),
            at=33,
            fires=here(),
            quiet=29,
        ),
        # Never there: what an empty project shows, and what the heartbeat of another cluster must
        # not hide.
        make_history(
            (ours("exporter_heartbeat_seconds", "", OTHER), "0+60x90"), at=12, fires=here()
        ),
        make_history((ours("exporter_heartbeat_seconds"), "0+60x20 _x9 1800+60x40"), at=29),
    ),
}
