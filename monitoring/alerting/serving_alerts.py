"""Alerts about online inference: errors against a budget, queues, refusals, drains, the base.

Their series are scraped by managed Prometheus from servers and proxies as they are, without an exporter.
"""

from holdfast.contract import serving
from monitoring.alerting.alert import Alert, AlertSource, Severity

ERROR_BUDGET = 0.001
"""Of all answers of a month, the share that may be our failure: 99.9 % are promised."""
BURN, SLOW_BURN = 14.4, 6
"""Times faster than the budget lasts: 2 % of it are gone within an hour, or 5 % within six (Google's SRE workbook)."""
QUEUE_S = 1
"""Many batches of a GPU: a longer wait is a wait for replicas."""
SHED = 0.05


def scraped(metric: str, labels: str = "") -> str:
    return f'{metric}{{cluster="$cluster"{"," if labels else ""}{labels}}}'


def answers(labels: str = "") -> str:
    """As clients get them: what a retry of the proxy repaired is no failure."""
    listener = f'envoy_http_conn_manager_prefix="{serving.PROXY_REQUESTS}"'
    return scraped(serving.PROXY_ANSWERS, f"{listener}{',' if labels else ''}{labels}")


def share(some: str, every: str, window: str) -> str:
    return f"sum(rate({some}[{window}])) / sum(rate({every}[{window}]))"


FAILED = answers('envoy_response_code_class="5"')
REFUSED_FOR_LOAD = scraped(serving.REFUSED, f'reason=~"{"|".join(serving.REFUSED_FOR_LOAD)}"')
READY_BASE = scraped(serving.READY, f'{serving.TIER_LABEL}="{serving.TIER_BASE}"')
_WAITED = scraped(f"{serving.QUEUE_SECONDS}_bucket")


def _burn(long: str, short: str, times: float) -> str:
    """The long window is sure, the short one ends the alert soon after the failures end."""
    every, most = answers(), f"{times * ERROR_BUDGET:g}"
    return f"{share(FAILED, every, long)} > {most} and {share(FAILED, every, short)} > {most}"


SERVING = (
    Alert(
        name="HoldfastServingErrorsBurnBudget",
        severity=Severity.PAGE,
        why="at this rate the month's error budget is used up within two days",
        query=_burn("1h", "5m", BURN),
        hold_s=60,
    ),
    Alert(
        name="HoldfastServingErrorsBurnSlowly",
        severity=Severity.TICKET,
        why="at this rate the month's error budget is used up within five days",
        query=_burn("6h", "30m", SLOW_BURN),
        hold_s=300,
    ),
    Alert(
        name="HoldfastServingQueueSlow",
        severity=Severity.TICKET,
        why="one request in a hundred waits longer than several batches take: there are too few replicas",
        query=f"histogram_quantile(0.99, sum by (le) (rate({_WAITED}[5m]))) > {QUEUE_S}",
        hold_s=300,
    ),
    Alert(
        name="HoldfastServingSheds",
        severity=Severity.PAGE,
        why="requests are rejected for load: traffic exceeds the capacity of all replicas, or the Spot replicas are gone",
        query=f"{share(REFUSED_FOR_LOAD, scraped(serving.REQUESTS), '5m')} > {SHED}",
        hold_s=120,
    ),
    Alert(
        name="HoldfastServingDrainOverBudget",
        severity=Severity.TICKET,
        why="a server still had requests when its grace period ended: those requests were cut off",
        query=(
            'resource.type="k8s_container" AND resource.labels.cluster_name="$cluster" AND '
            f'jsonPayload.action="drain" AND jsonPayload.message="{serving.OVER_BUDGET}"'
        ),
        source=AlertSource.LOG,
    ),
    Alert(
        name="HoldfastServingBaseBelowPromise",
        severity=Severity.PAGE,
        why="too few on-demand replicas are ready: if Spot capacity disappears, promised requests will be rejected",
        # Without any replica there is no series at all: one of the last day shows that a base should exist.
        query=f"(sum({READY_BASE}) or 0 * sum(max_over_time({READY_BASE}[1d]))) < $serving_base",
        hold_s=300,
    ),
)
