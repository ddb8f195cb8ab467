"""The dashboard of online inference: what clients get, what is promised, and how far the servers are from it."""

from holdfast.contract import serving
from monitoring.alerting.dashboard import Chart
from monitoring.alerting.serving_series import (
    BURN,
    ERROR_BUDGET,
    FAILED,
    QUEUE_S,
    READY_BASE,
    REFUSED_FOR_LOAD,
    SHED,
    answers,
    scraped,
    share,
)

_QUANTILES = ((0.5, "half"), (0.99, "99 of 100"))


def serving_charts(*, promised_per_s: float, base_needed: int, inflight_target: int) -> tuple[Chart, ...]:
    return (*_promised(promised_per_s, base_needed), *_measured(inflight_target))


def _promised(promised_per_s: float, base_needed: int) -> tuple[Chart, ...]:
    tier = serving.TIER_LABEL
    asked = scraped(serving.REQUESTS)
    return (
        Chart(
            title="Responses per second by class, as clients see them",
            queries=(
                (
                    "{{envoy_response_code_class}}xx",
                    f"sum by (envoy_response_code_class) (rate({answers()}[1m]))",
                ),
            ),
            stacked=True,
            threshold=promised_per_s,
        ),
        Chart(
            title="Share of failed requests",
            queries=(("5 minutes", share(FAILED, answers(), "5m")),),
            threshold=BURN * ERROR_BUDGET,
        ),
        Chart(
            title="Ready replicas",
            queries=((f"{{{{{tier}}}}}", f"sum by ({tier}) ({scraped(serving.READY)})"),),
            threshold=base_needed,
        ),
        Chart(
            title="Ready on-demand replicas and the promised number",
            queries=(("ready on demand", f"sum({READY_BASE})"),),
            threshold=base_needed,
        ),
        Chart(
            title="Share of rejected requests",
            queries=(
                ("for load", share(REFUSED_FOR_LOAD, asked, "5m")),
                ("{{reason}}", f"sum by (reason) (rate({scraped(serving.REFUSED)}[5m]))"),
            ),
            threshold=SHED,
        ),
    )


def _measured(inflight_target: int) -> tuple[Chart, ...]:
    return (
        Chart(
            title="Time in the queue",
            queries=_quantiles(scraped(f"{serving.QUEUE_SECONDS}_bucket")),
            unit="s",
            threshold=QUEUE_S,
        ),
        Chart(
            title="Response time",
            queries=_quantiles(scraped(f"{serving.REQUEST_SECONDS}_bucket")),
            unit="s",
        ),
        Chart(
            title="Running and waiting requests by replica",
            queries=(("{{pod}}", f"max by (pod) ({scraped(serving.INFLIGHT)})"),),
            threshold=inflight_target,
        ),
        Chart(title="Time per batch", queries=_quantiles(scraped(f"{serving.PREDICT_SECONDS}_bucket")), unit="s"),
        Chart(
            title="Draining servers, model swaps, predictor crashes",
            queries=(
                ("draining", f"sum({scraped(serving.DRAINING)})"),
                ("swaps {{outcome}}", f"sum by (outcome) (increase({scraped(serving.SWAPS)}[1h]))"),
                ("died", f"sum(increase({scraped(serving.PREDICTOR_DEATHS)}[1h]))"),
            ),
        ),
    )


def _quantiles(buckets: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (legend, f"histogram_quantile({share:g}, sum by (le) (rate({buckets}[5m])))") for share, legend in _QUANTILES
    )
