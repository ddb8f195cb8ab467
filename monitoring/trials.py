"""For each alert a bad and a good history: what `fire` plays and what the tests hold the queries to.

Read by fire.py. Series are in promtool's notation, one sample a minute: 'a+bxn' starts at a and adds b n times,
'axn' repeats, '_xn' is a gap.
"""

from dataclasses import dataclass

from monitoring.alerts import Limits

LIMITS = Limits(cluster="holdfast-trial", dead_letter_subscription="holdfast-trial-dead")
CLUSTER = f'cluster_name="{LIMITS.cluster}"'
OTHER = 'cluster_name="someone-else"'


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    series: tuple[tuple[str, str], ...]
    """(series, values)"""
    at_min: int
    """When the verdict is due."""
    fires: tuple[tuple[tuple[str, str], ...], ...] = ()
    """Labels of each alert that fires then, beside name and severity; none for a good history."""
    quiet_until_min: int = -1
    """An earlier moment at which nothing may fire yet; -1 asks for none."""


def _ours(metric: str, labels: str = "", cluster: str = CLUSTER) -> str:
    return f"custom_googleapis_com:holdfast_{metric}{{{cluster}{',' if labels else ''}{labels}}}"


def _lost(pool: str, reason: str = "Eviction", kind: str = "PreemptionEvent", cluster: str = CLUSTER) -> str:
    return (
        'kubernetes_io:node_pool_interruption_count{monitored_resource="k8s_node_pool",'
        f'{cluster},node_pool_name="{pool}",interruption_type="{kind}",interruption_reason="{reason}"}}'
    )


def _labels(**labels: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    return (tuple(sorted(labels.items())),)


def _pending(capacity: str, limit_min: int) -> tuple[History, ...]:
    series = _ours("pending_seconds", f'capacity="{capacity}",accelerator="nvidia-l4"')
    other = _ours("pending_seconds", f'capacity="{capacity}x",accelerator="nvidia-l4"')
    waiting = f"0+60x{limit_min + 30}"
    due, fires = limit_min + 8, _labels(accelerator="nvidia-l4")
    almost = f"0+60x{limit_min - 1} {(limit_min - 1) * 60}x60"
    return (
        History(series=((series, waiting),), at_min=due, fires=fires, quiet_until_min=limit_min + 4),
        # A gap of three minutes is bridged by the look-back.
        History(
            series=((series, f"0+60x{limit_min + 2} _x3 {60 * (limit_min + 6)}+60x9"),), at_min=due + 2, fires=fires
        ),
        History(series=((series, almost), (other, f"{limit_min * 600}x90")), at_min=limit_min + 40),
        History(series=((_ours("pending_seconds", f'capacity="{capacity}"', OTHER), "999999x90"),), at_min=60),
    )


_DATABASE = _ours("batch_failures_total", 'job="a",error_class="database"')
TRIALS: dict[str, tuple[History, ...]] = {
    "HoldfastSpotPreemptionsAboveUsual": (
        # Seven in an hour, one every eight minutes; the series begins with the first loss ever.
        History(
            series=((_lost("spot-l4"), "_x5 1 _x7 1 _x7 1 _x7 1 _x7 1 _x7 1 _x7 1"),),
            at_min=54,
            fires=_labels(node_pool_name="spot-l4"),
            quiet_until_min=50,
        ),
        History(series=((_lost("spot-l4"), "_x5 7 _x30"),), at_min=20, fires=_labels(node_pool_name="spot-l4")),
        History(
            series=(
                (_lost("spot-l4"), "1 _x9 1 _x9 1 _x9 1 _x9 1 _x9 1 _x9"),  # six, the usual
                (_lost("spot-a100"), "3x1"),  # pools are judged alone
                (_lost("spot-l4", reason="AutoResize"), "1x59"),  # scaling down is no loss
                (_lost("spot-l4", kind="MaintenanceEvent"), "1x59"),
                (_lost("spot-l4", cluster=OTHER), "1x59"),
            ),
            at_min=59,
        ),
        History(series=((_lost("spot-l4"), "7 _x90"),), at_min=75),  # an hour later it is over
    ),
    "HoldfastSpotPreemptionBurst": (
        History(
            series=((_lost("spot-l4"), "_x20 2 2 1 2"),),
            at_min=23,
            fires=_labels(node_pool_name="spot-l4"),
            quiet_until_min=22,
        ),
        History(
            series=(
                (_lost("spot-l4"), "1 _x8 1 _x8 1 _x8 1 _x8 1 _x8 1 _x8 1"),
                (_lost("x", reason="AutoResize"), "9x60"),
            ),
            at_min=54,
        ),
        History(
            series=((_lost("spot-l4", cluster=OTHER), "9x60"), (_lost("x", kind="TerminationEvent"), "9x60")), at_min=30
        ),
        History(series=((_lost("spot-l4"), "1 1 1 1 1 1 _x30"),), at_min=8),
        History(series=((_lost("spot-l4"), "_x20 1 1 1 _x3 2 2"),), at_min=27, fires=_labels(node_pool_name="spot-l4")),
        History(series=((_lost("spot-l4"), "4 _x13 4"),), at_min=14),
    ),
    "HoldfastOnDemandPendingTooLong": _pending("on-demand", 10),
    "HoldfastSpotPendingTooLong": _pending("spot", 30),
    "HoldfastFlexStartWaitTooLong": _pending("flex-start", 240),
    "HoldfastFlexNodeEndsUnsaved": (
        History(
            series=(
                (_ours("last_commit_age_seconds", 'job="a"'), "0+60x60"),
                (_ours("node_end_seconds", 'job="a",node="n1"'), "21000-60x60"),
                (_ours("node_end_seconds", 'job="a",node="n2"'), "400000-60x60"),
            ),
            at_min=36,
            fires=_labels(job="a", cluster_name=LIMITS.cluster),
            quiet_until_min=34,
        ),
        History(
            series=(
                (_ours("last_commit_age_seconds", 'job="saved"'), "1800x90"),
                (_ours("node_end_seconds", 'job="saved",node="n1"'), "9000-60x60"),
                (_ours("last_commit_age_seconds", 'job="young"'), "0+60x90"),
                (_ours("node_end_seconds", 'job="young",node="n2"'), "500000-60x90"),
                (_ours("last_commit_age_seconds", 'job="spot"'), "0+60x90"),
            ),
            at_min=60,
        ),
        History(
            series=(
                (_ours("last_commit_age_seconds", 'job="a"', OTHER), "9999x60"),
                (_ours("node_end_seconds", 'job="a",node="n1"', OTHER), "99x60"),
            ),
            at_min=30,
        ),
        History(  # six hours and a minute before the end it is too early
            series=(
                (_ours("last_commit_age_seconds", 'job="a"'), "3000x60"),
                (_ours("node_end_seconds", 'job="a",node="n1"'), "21600x60"),
            ),
            at_min=30,
        ),
    ),
    "HoldfastNoRecentCommit": (
        History(
            series=(
                (_ours("last_commit_age_seconds", 'job="a"'), "0+60x30"),
                (_ours("commit_interval_seconds", 'job="a"'), "300x30"),
            ),
            at_min=13,
            fires=_labels(job="a"),
            quiet_until_min=12,
        ),
        History(  # no interval is known before the second commit: the environment's limit counts
            series=((_ours("last_commit_age_seconds", 'job="a"'), "0+60x70"),),
            at_min=63,
            fires=_labels(job="a", cluster_name=LIMITS.cluster),
            quiet_until_min=60,
        ),
        History(
            series=(
                (_ours("last_commit_age_seconds", 'job="a"'), "0 60 120 180 240 300 0 60 120 180 240 300 360 _x2 420"),
                (_ours("commit_interval_seconds", 'job="a"'), "300x20"),
                (_ours("last_commit_age_seconds", 'job="tiny"'), "100x20"),  # under two minutes nobody is woken
                (_ours("commit_interval_seconds", 'job="tiny"'), "10x20"),
            ),
            at_min=15,
        ),
        History(series=((_ours("last_commit_age_seconds", 'job="a"', OTHER), "9999x20"),), at_min=15),
    ),
    "HoldfastRestoreSkippedCheckpoint": (
        History(  # the first ever, on a series that is born with it
            series=((_ours("restores_skipped_total", 'job="a"'), "_x70 1x20"),),
            at_min=71,
            fires=_labels(job="a"),
            quiet_until_min=69,
        ),
        History(  # the exporter restarted, its counter begins again
            series=((_ours("restores_skipped_total", 'job="a"'), "3x80 _x2 0x3 1x5"),),
            at_min=87,
            fires=_labels(job="a"),
        ),
        History(series=((_ours("restores_skipped_total", 'job="a"'), "4x80 _x8 4x60"),), at_min=140),  # old news
        History(
            series=((_ours("restores_skipped_total", 'job="a"'), "3x80 4x100"),), at_min=175
        ),  # an hour and a half ago
        # Back after two hours of silence: better one alert too many.
        History(
            series=((_ours("restores_skipped_total", 'job="a"'), "4x15 _x120 4x20"),),
            at_min=140,
            fires=_labels(job="a"),
        ),
        History(series=((_ours("restores_skipped_total", 'job="a"', OTHER), "_x70 1x20"),), at_min=80),
    ),
    "HoldfastGoodputBelowBreakEven": (
        History(
            series=((_ours("goodput_ratio", 'job="a"'), "0.9x10 0.79x50"),),
            at_min=42,
            fires=_labels(job="a", cluster_name=LIMITS.cluster),
            quiet_until_min=38,
        ),
        History(
            series=((_ours("goodput_ratio", 'job="a"'), "0.2x20 0.8x60"), (_ours("goodput_ratio", "", OTHER), "0x80")),
            at_min=75,
        ),
    ),
    "HoldfastRestartsWithoutProgress": (
        History(
            series=((_ours("fruitless_restarts", 'job="a"'), "0 1 1 2 2 3 3"),),
            at_min=5,
            fires=_labels(job="a", cluster_name=LIMITS.cluster),
            quiet_until_min=4,
        ),
        History(
            series=((_ours("fruitless_restarts", 'job="a"'), "2x30"), (_ours("fruitless_restarts", "", OTHER), "9x30")),
            at_min=20,
        ),
    ),
    "HoldfastBacklogPastDeadline": (
        History(
            series=((_ours("batch_oldest_seconds", 'job="a"'), "86000+60x30"),),
            at_min=13,
            fires=_labels(job="a"),
            quiet_until_min=8,
        ),
        History(
            series=(
                (_ours("batch_oldest_seconds", 'job="a"'), "86400x30"),
                (_ours("batch_oldest_seconds", "", OTHER), "99999x30"),
            ),
            at_min=25,
        ),
    ),
    "HoldfastDeadLetters": (
        History(
            series=(
                (
                    f'pubsub_googleapis_com:subscription_num_undelivered_messages{{subscription_id="{LIMITS.dead_letter_subscription}"}}',
                    "0x5 1x5",
                ),
            ),
            at_min=7,
            fires=_labels(subscription_id=LIMITS.dead_letter_subscription),
            quiet_until_min=4,
        ),
        History(series=((_ours("dead_letters_total", 'job="a"'), "_x70 1x20"),), at_min=72, fires=_labels(job="a")),
        History(series=((_ours("dead_letters_total", 'job="a"'), "2x90 3x9"),), at_min=95, fires=_labels(job="a")),
        History(series=((_ours("dead_letters_total", 'job="a"'), "3x80 4x100"),), at_min=175),
        History(
            series=((_ours("dead_letters_total", 'job="a"'), "4x15 _x120 4x20"),), at_min=140, fires=_labels(job="a")
        ),
        History(
            series=(
                (
                    'pubsub_googleapis_com:subscription_num_undelivered_messages{subscription_id="holdfast-trial-work"}',
                    "500x90",
                ),
                (_ours("dead_letters_total", 'job="a"'), "2x60 _x7 2x90"),
                (_ours("dead_letters_total", 'job="a"', OTHER), "_x70 5x90"),
            ),
            at_min=130,
        ),
    ),
    "HoldfastResultsDatabaseErrors": (
        History(
            series=((_ours("batch_failures_total", 'job="a",error_class="database"'), "1x20 2+1x20"),),
            at_min=30,
            fires=_labels(job="a"),
            quiet_until_min=22,
        ),
        History(series=((_DATABASE, "0x5 0+0.4x60"),), at_min=40),  # four in ten minutes
        History(series=((_DATABASE, "9x60"),), at_min=40),  # an outage long over
        History(series=((_DATABASE, "_x30 4x20"),), at_min=31),
        History(series=((_DATABASE, "9x5 _x25 9x20"),), at_min=33, fires=_labels(job="a")),
        History(series=((_DATABASE, "9x5 _x11 9x20"),), at_min=21),  # a short silence is no birth
        History(  # born in the middle of an outage
            series=((_ours("batch_failures_total", 'job="a",error_class="database"'), "_x30 9x20"),),
            at_min=31,
            fires=_labels(job="a"),
        ),
        History(
            series=(
                (_ours("batch_failures_total", 'job="a",error_class="database"'), "1x20 2 3 4 5x40"),
                (_ours("batch_failures_total", 'job="a",error_class="input"'), "0+9x60"),
                (_ours("batch_failures_total", 'job="a",error_class="database"', OTHER), "0+9x60"),
            ),
            at_min=30,
        ),
    ),
    "HoldfastSystemPodsOnSpot": (
        History(
            series=((_ours("system_pods_on_interruptible", 'namespace="kube-system"'), "0x5 1x30"),),
            at_min=17,
            fires=_labels(namespace="kube-system"),
            quiet_until_min=13,
        ),
        History(
            series=(
                (_ours("system_pods_on_interruptible", 'namespace="kube-system"'), "0x5 1x8 0x30"),
                (_ours("system_pods_on_interruptible", 'namespace="kube-system"', OTHER), "4x60"),
            ),
            at_min=40,
        ),
    ),
    "HoldfastDisruptionBudgetViolated": (
        History(
            series=((_ours("disruption_budget_shortfall", 'namespace="serving",budget="server"'), "0x5 1x30"),),
            at_min=17,
            fires=_labels(namespace="serving", budget="server"),
            quiet_until_min=13,
        ),
        History(
            series=(
                (_ours("disruption_budget_shortfall", 'namespace="serving",budget="server"'), "1x9 0x30"),
                (_ours("disruption_budget_shortfall", 'namespace="serving",budget="b"', OTHER), "4x60"),
            ),
            at_min=30,
        ),
    ),
    "HoldfastMonitoringSilent": (
        History(  # dead: the series ends
            series=((_ours("exporter_heartbeat_seconds"), "0+60x20"),),
            at_min=33,
            fires=_labels(cluster_name=LIMITS.cluster),
            quiet_until_min=24,
        ),
        History(  # stuck: it is scraped, but no pass ends any more
            series=((_ours("exporter_heartbeat_seconds"), "0+60x20 1200x30"),),
            at_min=33,
            fires=_labels(cluster_name=LIMITS.cluster),
            quiet_until_min=29,
        ),
        # Never there: what an empty project shows, and what the heartbeat of another cluster must not hide.
        History(
            series=((_ours("exporter_heartbeat_seconds", "", OTHER), "0+60x90"),),
            at_min=12,
            fires=_labels(cluster_name=LIMITS.cluster),
        ),
        History(series=((_ours("exporter_heartbeat_seconds"), "0+60x20 _x9 1800+60x40"),), at_min=29),
    ),
}
