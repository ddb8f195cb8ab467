"""The series of online inference and the limits on them, by the names that queries give them.

Managed Prometheus scrapes them from servers and proxies as they are, without an exporter.
"""

from holdfast.contract import serving

ERROR_BUDGET = 0.001
"""Of all answers of a month, the share that may be our failure: 99.9 % are promised."""
BURN, SLOW_BURN = 14.4, 6
"""Times faster than the budget lasts: 2 % of it are gone within an hour, or 5 % within six (Google's SRE workbook)."""


def _scraped(metric: str, labels: str = "") -> str:
    return f'{metric}{{cluster="$cluster"{"," if labels else ""}{labels}}}'


# Answers as clients get them: what a retry of the proxy repaired is no failure.
_LISTENER = f'envoy_http_conn_manager_prefix="{serving.PROXY_REQUESTS}"'
SERIES = {
    "answers": _scraped(serving.PROXY_ANSWERS, _LISTENER),
    "failed_answers": _scraped(serving.PROXY_ANSWERS, f'{_LISTENER},envoy_response_code_class="5"'),
    "refused_for_load": _scraped(serving.REFUSED, f'reason=~"{"|".join(serving.REFUSED_FOR_LOAD)}"'),
    "requests": _scraped(serving.REQUESTS),
    "ready_base": _scraped(serving.READY, f'{serving.TIER_LABEL}="{serving.TIER_BASE}"'),
    "queue_buckets": _scraped(f"{serving.QUEUE_SECONDS}_bucket"),
    "drain_over_budget": serving.OVER_BUDGET,
    "burn": f"{BURN * ERROR_BUDGET:g}",
    "slow_burn": f"{SLOW_BURN * ERROR_BUDGET:g}",
    # Seconds: many batches of a GPU, and a longer wait is a wait for replicas.
    "queue_s": "1",
    "shed": "0.05",
}
"""Placeholder of a query -> its text."""
