"""What an alert is, as data, and the series that queries are made of.

A query is text: `$cluster`, `$dead_letters` and the thresholds of `Alerts` (`$spot_pending_s`) are filled in once.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from string import Template
from typing import Any

from holdfast.contract.errors import InputError
from holdfast.contract.telemetry import GPU_FIELDS, METRICS
from infra.environments.services import Alerts

HOUR, DAY = 3_600, 86_400


class Severity(StrEnum):
    """Cloud Monitoring's levels are CRITICAL, ERROR and WARNING, in this order."""

    PAGE = "page"  # somebody gets up
    TICKET = "ticket"  # within the working day
    INFO = "info"  # worth knowing

    @property
    def level(self) -> str:
        return {"page": "CRITICAL", "ticket": "ERROR", "info": "WARNING"}[self.value]


class AlertSource(StrEnum):
    PROMQL = "PromQL"
    LOG = "log entries"  # where the signal exists nowhere else
    BUDGET = "billing budget"


Values = Mapping[str, Any]
"""Placeholder -> value: the fields of the environment's `Alerts`, and what is computed from the rest of it."""
EXAMPLE: Values = asdict(Alerts()) | {
    "cluster": "holdfast-example",
    "dead_letters": "holdfast-example-dead",
    "goodput_min": 0.8,
    "serving_base": 2,
}
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
    source: AlertSource = AlertSource.PROMQL
    runbook: str = ""
    """Markdown of an alert from a module of your own; empty: the section of runbook.md."""

    @property
    def slug(self) -> str:
        """The heading in runbook.md: HoldfastSpotPreemptionBurst -> spot-preemption-burst."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", self.name.removeprefix("Holdfast")).lower()


def filled(text: str, values: Values) -> str:
    """The text with its placeholders replaced. InputError for one that is unknown."""
    try:
        return Template(text).substitute(values)
    except (KeyError, ValueError) as error:
        allowed = ", ".join(f"${name}" for name in values)
        raise InputError(
            "placeholder of a query", got=error, allowed=allowed, fix="write $$ for a dollar sign"
        ) from error


def ours(metric: str, labels: str = "") -> str:
    """Cloud Monitoring's PromQL name of a metric that the exporter writes."""
    assert metric in METRICS, metric
    more = f",{labels}" if labels else ""
    return f'custom_googleapis_com:holdfast_{metric}{{cluster_name="$cluster"{more}}}'


def dcgm(field: str) -> str:
    """A device's series as managed Prometheus names it, from the exporter of workloads/manifests/gpu_metrics.py."""
    assert field in GPU_FIELDS, field
    return f'DCGM_FI_DEV_{field}{{cluster="$cluster"}}'


DUTY_CYCLE = (
    'kubernetes_io:container_accelerator_duty_cycle{monitored_resource="k8s_container",cluster_name="$cluster"}'
)
"""Percent of the time that a container used its GPU."""
DEAD_LETTERS = 'pubsub_googleapis_com:subscription_num_undelivered_messages{subscription_id="$dead_letters"}'


def grew(series: str, by: str, window: str, more_than: int = 0) -> str:
    """A counter rose within the window. A series that is new in the window counts with all it has:
    increase() alone would sleep through the first event ever."""
    began = f"sum by ({by}) ({series} unless max_over_time({series}[{window}] offset {window}))"
    return f"sum by ({by}) (increase({series}[{window}])) > {more_than} or {began} > {more_than}"
