"""What an alert is, as data, and the series that queries are made of.

A query is text: `$cluster`, the thresholds of `Alerts` (`$spot_pending_s`) and series
(`$goodput_ratio`) are filled in.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from string import Template
from typing import Any

from holdfast.support.errors import InputError
from holdfast.vocabulary import serving
from holdfast.vocabulary.kubernetes import preemptions
from holdfast.vocabulary.telemetry import GPU_FIELDS, METRICS
from infra.environments.services import Alerts


class Severity(StrEnum):
    """Cloud Monitoring's levels are CRITICAL, ERROR and WARNING, in this order."""

    PAGE = "page"  # a person gets up
    TICKET = "ticket"  # within the working day
    INFO = "info"  # worth knowing

    @property
    def level(self) -> str:
        return {
            "page": "CRITICAL",
            "ticket": "ERROR",
            "info": "WARNING",
        }[self.value]


class AlertSource(StrEnum):
    PROMQL = "PromQL"
    LOG = "log entries"  # where the signal exists nowhere else
    BUDGET = "billing budget"


Values = Mapping[str, Any]
"""Placeholder -> value: the fields of the environment's `Alerts`, and what is computed from the
rest of it.
"""
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
            "placeholder of a query",
            got=error,
            allowed=allowed,
            fix="write $$ for a dollar sign",
        ) from error


ERROR_BUDGET = 0.001
"""Of all answers of a month, the share that may be our failure: 99.9 % are promised."""
BURN = 14.4
SLOW_BURN = 6
"""Times faster than the budget lasts: 2 % of it are gone within an hour, or 5 % within six
(Google's SRE workbook).
"""


def _scraped(metric: str, labels: str = "") -> str:
    return f'{metric}{{cluster="$cluster"{"," if labels else ""}{labels}}}'


# Answers as clients get them: what a retry of the proxy repaired is no failure.
_LISTENER = f'envoy_http_conn_manager_prefix="{serving.PROXY_REQUESTS}"'
SERVING = {
    "answers": _scraped(serving.PROXY_ANSWERS, _LISTENER),
    "failed_answers": _scraped(serving.PROXY_ANSWERS, f'{_LISTENER},envoy_response_code_class="5"'),
    "refused_for_load": _scraped(
        serving.REFUSED, f'reason=~"{"|".join(serving.REFUSED_FOR_LOAD)}"'
    ),
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
"""What managed Prometheus scrapes from servers and proxies as they are, without an exporter, and
the limits on it.
"""


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
_ERRORS, _REFUSALS = (
    " OR ".join(f'"{reason}"' for reason in group) for group in (_NO_SCALE_UP, _NO_PROVISIONING)
)
_SCALE_FAILURES = (
    'resource.type="k8s_cluster" AND resource.labels.cluster_name="$cluster" AND '
    'log_id("container.googleapis.com/cluster-autoscaler-visibility") AND '
    f"(jsonPayload.resultInfo.results.errorMsg.messageId=({_ERRORS}) OR "
    f"jsonPayload.noDecisionStatus.noScaleUp.unhandledPodGroups.napFailureReasons.messageId=({_REFUSALS}))"
)
SERIES = {
    # As Cloud Monitoring's PromQL names what the exporter writes, and managed Prometheus what it
    # scrapes of devices.
    **{
        metric: f'custom_googleapis_com:holdfast_{metric}{{cluster_name="$cluster"}}'
        for metric in METRICS
    },
    **{field: f'DCGM_FI_DEV_{field}{{cluster="$cluster"}}' for field in GPU_FIELDS},
    **SERVING,
    "preemptions": preemptions("$cluster"),
    # Percent of the time that a container used its GPU.
    "gpu_use": (
        'kubernetes_io:container_accelerator_duty_cycle{monitored_resource="k8s_container",cluster_name="$cluster"}'
    ),
    "dead_letters_held": (
        'pubsub_googleapis_com:subscription_num_undelivered_messages{subscription_id="$dead_letters"}'
    ),
    "scale_failures": _SCALE_FAILURES,
}
"""Placeholder of a query -> the series, or the log filter."""
