"""The series that the rule cases are made of, with the labels that Cloud Monitoring gives them."""

from holdfast.contract.kubernetes import INTERRUPTIONS_METRIC, PREEMPTION_TYPE
from monitoring.alerting.alert import EXAMPLE
from monitoring.alerting.rule_test import History

CLUSTER = f'cluster_name="{EXAMPLE["cluster"]}"'
OTHER = 'cluster_name="someone-else"'


def ours(metric: str, labels: str = "", cluster: str = CLUSTER) -> str:
    return f"custom_googleapis_com:holdfast_{metric}{{{cluster}{',' if labels else ''}{labels}}}"


def lost(pool: str, reason: str = "Eviction", kind: str = PREEMPTION_TYPE, cluster: str = CLUSTER) -> str:
    return (
        f'{INTERRUPTIONS_METRIC}{{monitored_resource="k8s_node_pool",'
        f'{cluster},node_pool_name="{pool}",interruption_type="{kind}",interruption_reason="{reason}"}}'
    )


def labels(**pairs: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    return (tuple(sorted(pairs.items())),)


def risen(metric: str, own: str, fires: tuple[tuple[tuple[str, str], ...], ...]) -> tuple[History, ...]:
    """A counter of which any rise within an hour is news."""
    counted, other = ours(metric, own), ours(metric, own, OTHER)
    return (
        # The first ever, on a series that is born with it.
        History(series=((counted, "_x70 1x20"),), at_min=71, fires=fires, quiet_until_min=69),
        # The exporter restarted, its counter begins again.
        History(series=((counted, "3x80 _x2 0x3 1x5"),), at_min=87, fires=fires),
        History(series=((counted, "0x80 1x20"),), at_min=85, fires=fires),  # one, exactly
        History(series=((counted, "4x80 _x8 4x60"),), at_min=140),  # old news
        History(series=((counted, "3x80 4x100"),), at_min=175),  # an hour and a half ago
        # Back after two hours of silence: better one alert too many.
        History(series=((counted, "4x15 _x120 4x20"),), at_min=140, fires=fires),
        History(series=((other, "_x70 1x20"),), at_min=80),
    )
