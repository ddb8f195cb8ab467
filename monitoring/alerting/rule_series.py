"""What a trial of an alert is, and the series that trials are made of.

Series are in promtool's notation, one sample a minute: 'a+bxn' starts at a and
adds b n times, 'axn' repeats, '_xn' is a gap.
"""

from dataclasses import dataclass

from infra.contract.kubernetes import INTERRUPTIONS_METRIC, PREEMPTION_TYPE
from monitoring.alerting.alerts import Limits

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


def ours(metric: str, labels: str = "", cluster: str = CLUSTER) -> str:
    return f"custom_googleapis_com:holdfast_{metric}{{{cluster}{',' if labels else ''}{labels}}}"


def lost(pool: str, reason: str = "Eviction", kind: str = PREEMPTION_TYPE, cluster: str = CLUSTER) -> str:
    return (
        f'{INTERRUPTIONS_METRIC}{{monitored_resource="k8s_node_pool",'
        f'{cluster},node_pool_name="{pool}",interruption_type="{kind}",interruption_reason="{reason}"}}'
    )


def labels(**said: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    return (tuple(sorted(said.items())),)
