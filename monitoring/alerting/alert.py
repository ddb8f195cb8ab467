"""What an alert is, as data, and the series that queries are made of."""

import re
from dataclasses import dataclass
from enum import StrEnum

from holdfast.contract.telemetry import METRICS

HOUR, DAY = 3_600, 86_400


class Severity(StrEnum):
    """Cloud Monitoring's levels are CRITICAL, ERROR and WARNING, in this order."""

    PAGE = "page"  # somebody gets up
    TICKET = "ticket"  # within the working day
    INFO = "info"  # worth knowing

    @property
    def level(self) -> str:
        return {"page": "CRITICAL", "ticket": "ERROR", "info": "WARNING"}[self.value]


class Source(StrEnum):
    PROMQL = "PromQL"
    LOG = "log entries"  # where the signal exists nowhere else
    BUDGET = "billing budget"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The values that an environment may move; infra.environments has the same names and checks them."""

    cluster: str
    dead_letter_subscription: str
    on_demand_pending_s: int = 600
    spot_pending_s: int = 1_800
    flex_pending_s: int = 14_400
    queue_wait_s: int = 14_400
    checkpoint_age_s: int = HOUR
    preemptions_per_hour: int = 6
    goodput_min: float = 0.8
    batch_oldest_s: int = DAY
    heartbeat_s: int = 600
    serving_base: int = 0
    """Replicas on demand that the promise needs; 0 where nothing is served."""


EXAMPLE = Limits(cluster="holdfast-example", dead_letter_subscription="holdfast-example-dead", serving_base=2)
"""Of no environment: what the runbook, the command `alerts` and the rule cases are about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    name: str
    severity: Severity
    why: str
    query: str = ""
    """PromQL that is true while the alert should fire, or a log filter. Empty for a budget."""
    hold_s: int = 0
    """How long the query must be true; a multiple of 30."""
    source: Source = Source.PROMQL
    runbook: str = ""
    """Markdown of an alert from a module of your own; empty: the section of runbook.md."""

    @property
    def slug(self) -> str:
        """The heading in runbook.md: HoldfastSpotPreemptionBurst -> spot-preemption-burst."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", self.name.removeprefix("Holdfast")).lower()


def ours(metric: str, cluster: str, labels: str = "") -> str:
    """Cloud Monitoring's PromQL name of a metric that the exporter writes."""
    assert metric in METRICS, metric
    more = f",{labels}" if labels else ""
    return f'custom_googleapis_com:holdfast_{metric}{{cluster_name="{cluster}"{more}}}'


def dcgm(field: str, cluster: str) -> str:
    """A device's series as managed Prometheus names it; which of them GKE collects depends on its release."""
    return f'DCGM_FI_DEV_{field}{{cluster="{cluster}"}}'


def duty_cycle(cluster: str) -> str:
    """Percent of the time that a container used its GPU."""
    labels = f'monitored_resource="k8s_container",cluster_name="{cluster}"'
    return f"kubernetes_io:container_accelerator_duty_cycle{{{labels}}}"


def grew(series: str, by: str, window: str, more_than: int = 0) -> str:
    """A counter rose within the window. A series that nobody saw in the window before counts with all it has:
    increase() alone would sleep through the first event ever."""
    began = f"sum by ({by}) ({series} unless max_over_time({series}[{window}] offset {window}))"
    return f"sum by ({by}) (increase({series}[{window}])) > {more_than} or {began} > {more_than}"
