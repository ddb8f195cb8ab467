"""What an alert is, as data, and the series that queries are made of.

A query is text: `$cluster`, the thresholds of `Alerts` (`$spot_pending_s`) and series (`$goodput_ratio`) are filled in.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from string import Template
from typing import Any

from holdfast.contract.errors import InputError
from holdfast.contract.kubernetes import preemptions
from holdfast.contract.telemetry import GPU_FIELDS, METRICS
from infra.environments.services import Alerts
from monitoring.alerting import serving_series


class Severity(StrEnum):
    """Cloud Monitoring's levels are CRITICAL, ERROR and WARNING, in this order."""

    PAGE = "page"  # a person gets up
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


class _Known(dict[str, Any]):
    """Values, and the series that they make."""

    def __missing__(self, name: str) -> str:
        return Template(SERIES[name]).substitute(self)


def filled(text: str, values: Values) -> str:
    """The text with its placeholders replaced. InputError for one that is unknown."""
    try:
        return Template(text).substitute(_Known(values))
    except (KeyError, ValueError) as error:
        allowed = ", ".join(f"${name}" for name in [*values, *SERIES])
        raise InputError(
            "placeholder of a query", got=error, allowed=allowed, fix="write $$ for a dollar sign"
        ) from error


# Reasons by which the autoscaler's visibility log reports that no node will come.
_NO_SCALE_UP = (
    "scale.up.error.out.of.resources",
    "scale.up.error.quota.exceeded",
    "scale.up.error.waiting.for.instances.timeout",
    "scale.up.error.ip.space.exhausted",
)
_NO_PROVISIONING = (
    "no.scale.up.nap.pod.gpu.no.limit.defined",
    "no.scale.up.nap.pod.gpu.type.not.supported",
    "no.scale.up.nap.pod.machine.families.do.not.support.dws",
)
_ERRORS, _REFUSALS = (" OR ".join(f'"{reason}"' for reason in group) for group in (_NO_SCALE_UP, _NO_PROVISIONING))
_SCALE_FAILURES = (
    'resource.type="k8s_cluster" AND resource.labels.cluster_name="$cluster" AND '
    'log_id("container.googleapis.com/cluster-autoscaler-visibility") AND '
    f"(jsonPayload.resultInfo.results.errorMsg.messageId=({_ERRORS}) OR "
    f"jsonPayload.noDecisionStatus.noScaleUp.unhandledPodGroups.napFailureReasons.messageId=({_REFUSALS}))"
)
SERIES = {
    # As Cloud Monitoring's PromQL names what the exporter writes, and managed Prometheus what it scrapes of devices.
    **{metric: f'custom_googleapis_com:holdfast_{metric}{{cluster_name="$cluster"}}' for metric in METRICS},
    **{field: f'DCGM_FI_DEV_{field}{{cluster="$cluster"}}' for field in GPU_FIELDS},
    **serving_series.SERIES,
    "preemptions": preemptions("$cluster"),
    # Percent of the time that a container used its GPU.
    "gpu_use": 'kubernetes_io:container_accelerator_duty_cycle{monitored_resource="k8s_container",cluster_name="$cluster"}',
    "dead_letters_held": 'pubsub_googleapis_com:subscription_num_undelivered_messages{subscription_id="$dead_letters"}',
    "scale_failures": _SCALE_FAILURES,
}
"""Placeholder of a query -> the series, or the log filter."""
