"""The series of online inference and the limits on them, for alerts and the dashboard.

Managed Prometheus scrapes them from servers and proxies as they are, without an exporter.
"""

from holdfast.contract import serving

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

SERIES = {
    "answers": answers(),
    "failed_answers": FAILED,
    "refused_for_load": REFUSED_FOR_LOAD,
    "requests": scraped(serving.REQUESTS),
    "ready_base": READY_BASE,
    "queue_buckets": scraped(f"{serving.QUEUE_SECONDS}_bucket"),
    "drain_over_budget": serving.OVER_BUDGET,
    "burn": f"{BURN * ERROR_BUDGET:g}",
    "slow_burn": f"{SLOW_BURN * ERROR_BUDGET:g}",
    "queue_s": f"{QUEUE_S}",
    "shed": f"{SHED}",
}
"""Placeholder of a query -> its text; what is here and not in alerts.toml is shown on the dashboard too."""
