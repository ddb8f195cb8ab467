"""Alerts about online inference: errors against a budget, queues, refusals, drains, the base.

Their series are scraped by managed Prometheus from servers and proxies as they are: no exporter stands between.
"""

from holdfast.contract import serving
from monitoring.alerting.alert import Alert, Limits, Severity, Source

ERROR_BUDGET = 0.001
"""Of all answers of a month, the share that may be a failure of ours: 99.9 % are promised."""
BURN = 14.4
"""Times faster than the budget lasts: 2 % of it are gone within an hour."""
QUEUE_S = 1
"""Many batches of a GPU: whoever waits longer waits for replicas."""
SHED = 0.05


def scraped(metric: str, cluster: str, labels: str = "") -> str:
    return f'{metric}{{cluster="{cluster}"{"," if labels else ""}{labels}}}'


def answers(cluster: str, labels: str = "") -> str:
    """As clients get them: what the proxy mended by a retry is no failure."""
    listener = f'envoy_http_conn_manager_prefix="{serving.PROXY_REQUESTS}"'
    return scraped(serving.PROXY_ANSWERS, cluster, f"{listener}{',' if labels else ''}{labels}")


def failed(cluster: str) -> str:
    return answers(cluster, 'envoy_response_code_class="5"')


def share(some: str, every: str, window: str) -> str:
    return f"sum(rate({some}[{window}])) / sum(rate({every}[{window}]))"


def refused_for_load(cluster: str) -> str:
    return scraped(serving.REFUSED, cluster, f'reason=~"{"|".join(serving.REFUSED_FOR_LOAD)}"')


def ready_base(cluster: str) -> str:
    return scraped(serving.READY, cluster, f'{serving.TIER_LABEL}="{serving.TIER_BASE}"')


def serving_alerts(limits: Limits) -> tuple[Alert, ...]:
    cluster = limits.cluster
    waited = scraped(f"{serving.QUEUE_SECONDS}_bucket", cluster)
    ready = ready_base(cluster)
    return (
        Alert(
            name="HoldfastServingErrorsBurnBudget",
            severity=Severity.PAGE,
            why="at this rate the month's error budget is used up within two days",
            query=_burn(cluster, "1h", "5m"),
            hold_s=60,
        ),
        Alert(
            name="HoldfastServingQueueSlow",
            severity=Severity.TICKET,
            why="one request in a hundred waits longer than several batches take: there are too few replicas",
            query=f"histogram_quantile(0.99, sum by (le) (rate({waited}[5m]))) > {QUEUE_S}",
            hold_s=300,
        ),
        Alert(
            name="HoldfastServingSheds",
            severity=Severity.PAGE,
            why="requests are rejected for load: traffic exceeds the capacity of all replicas, or the Spot replicas are gone",
            query=f"{share(refused_for_load(cluster), scraped(serving.REQUESTS, cluster), '5m')} > {SHED}",
            hold_s=120,
        ),
        Alert(
            name="HoldfastServingDrainOverBudget",
            severity=Severity.TICKET,
            why="a server still had requests when its grace period ended: those requests were cut off",
            query=(
                f'resource.type="k8s_container" AND resource.labels.cluster_name="{cluster}" AND '
                f'jsonPayload.action="drain" AND jsonPayload.message="{serving.OVER_BUDGET}"'
            ),
            source=Source.LOG,
        ),
        Alert(
            name="HoldfastServingBaseBelowPromise",
            severity=Severity.PAGE,
            why="too few on-demand replicas are ready: if Spot capacity disappears, promised requests will be rejected",
            # Without any replica there is no series at all: one of the last day stands for a base that should be there.
            query=f"(sum({ready}) or 0 * sum(max_over_time({ready}[1d]))) < {limits.serving_base}",
            hold_s=300,
        ),
    )


def _burn(cluster: str, long: str, short: str) -> str:
    """The long window is sure, the short one ends the alert soon after the failures end."""
    bad, every, most = failed(cluster), answers(cluster), f"{BURN * ERROR_BUDGET:g}"
    return f"{share(bad, every, long)} > {most} and {share(bad, every, short)} > {most}"
