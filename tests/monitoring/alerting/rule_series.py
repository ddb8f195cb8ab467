"""The series that the rule cases are made of, with the labels that Cloud Monitoring gives them."""

from holdfast.contract.kubernetes import INTERRUPTIONS_METRIC, PREEMPTION_TYPE
from monitoring.alerting.alert import EXAMPLE

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
