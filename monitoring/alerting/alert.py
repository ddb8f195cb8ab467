"""The type of alerts, and the series that their queries use.

A query is text with placeholders: `$cluster`, the thresholds of `Alerts` (`$spot_pending_s`) and
series (`$goodput_ratio`).
"""

import re
from collections.abc import Mapping, Sequence
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

    PAGE = "page"  # a person acts now
    TICKET = "ticket"  # a person acts within the working day
    INFO = "info"  # no person needs to act

    @property
    def level(self) -> str:
        return {
            "page": "CRITICAL",
            "ticket": "ERROR",
            "info": "WARNING",
        }[self.value]


class AlertSource(StrEnum):
    PROMQL = "PromQL"
    LOG = "log entries"  # for signals that no metric has
    BUDGET = "billing budget"


Values = Mapping[str, Any]
"""Placeholder -> value: the fields of the environment's `Alerts`, and values computed from other
fields.
"""
EXAMPLE: Values = asdict(Alerts()) | {
    "cluster": "holdfast-example",
    "dead_letters": "holdfast-example-dead",
    "goodput_min": 0.8,
    "serving_base": 2,
    "in_namespaces": "",
    "in_pod_namespaces": "",
}
"""Values of no environment, for the runbook, the command `alerts` and the tests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    name: str
    severity: Severity
    why: str
    query: str = ""
    """PromQL that is true while the alert should fire, or a log filter. Empty for a budget."""
    hold_s: int = 0
    """The time for which the query must be true; a multiple of 30."""
    source: AlertSource = AlertSource.PROMQL
    subject: str = ""
    """Label of the series that the subject of a notification names, for example `job`."""
    job_query: str = ""
    """The part of the query whose series name the namespace of a job, with `$in_namespaces` among
    their labels: teams get it about their own jobs. Empty: the alert is not about jobs.
    """
    runbook: str = ""
    """Markdown of an alert from your own module; empty: the section of runbook.md."""

    @property
    def slug(self) -> str:
        """The heading in runbook.md: HoldfastSpotPreemptionBurst -> spot-preemption-burst."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", self.name.removeprefix("Holdfast")).lower()


def select_namespaces(namespaces: Sequence[str]) -> Values:
    """Return the placeholders that limit the series of jobs to namespaces."""
    pattern = "|".join(namespaces)
    return {
        "in_namespaces": f',namespace=~"{pattern}"',
        "in_pod_namespaces": f',namespace_name=~"{pattern}"',
    }


class _Placeholders(dict[str, Any]):
    """Values, and series whose own placeholders are filled in."""

    def __missing__(self, name: str) -> str:
        return Template(SERIES[name]).substitute(self)


def fill(text: str, values: Values) -> str:
    """Replace the placeholders of a text. Raises InputError if one is unknown."""
    try:
        return Template(text).substitute(_Placeholders(values))
    except (KeyError, ValueError) as error:
        allowed = ", ".join(f"${name}" for name in [*values, *SERIES])
        raise InputError(
            "placeholder of a query",
            got=error,
            allowed=allowed,
            fix="write $$ for a dollar sign",
        ) from error


ERROR_BUDGET = 0.001
"""The share of a month's answers that may fail through our fault: 99.9 % are promised."""
BURN = 14.4
SLOW_BURN = 6
"""Rates at which the budget is consumed: with 14.4 times its monthly rate, 2 % of it in an hour;
with 6 times, 5 % in six hours (Google's SRE workbook).
"""


def _select(metric: str, labels: str = "") -> str:
    """Select the cluster's series of a metric that managed Prometheus scrapes."""
    selector = 'cluster="$cluster"'
    if labels:
        selector = f"{selector},{labels}"
    return f"{metric}{{{selector}}}"


# Answers as clients get them: a request that succeeds after a retry of the proxy is no failure.
_LISTENER = f'envoy_http_conn_manager_prefix="{serving.PROXY_REQUESTS}"'
SERVING = {
    "answers": _select(serving.PROXY_ANSWERS, _LISTENER),
    "failed_answers": _select(serving.PROXY_ANSWERS, f'{_LISTENER},envoy_response_code_class="5"'),
    "refused_for_load": _select(serving.REFUSED, f'reason=~"{"|".join(serving.REFUSED_FOR_LOAD)}"'),
    "requests": _select(serving.REQUESTS),
    "ready_base": _select(serving.READY, f'{serving.TIER_LABEL}="{serving.TIER_BASE}"'),
    "ended_streams": _select(serving.ROUTER_ENDED),
    "seam_buckets": _select(f"{serving.ROUTER_SEAM_SECONDS}_bucket"),
    "queue_buckets": _select(f"{serving.QUEUE_SECONDS}_bucket"),
    "drain_over_budget": serving.OVER_BUDGET,
    "burn": f"{BURN * ERROR_BUDGET:g}",
    "slow_burn": f"{SLOW_BURN * ERROR_BUDGET:g}",
    # In seconds: a GPU finishes many batches in it, so a longer wait means too few replicas.
    "queue_s": "1",
    "shed": "0.05",
    # A hang is found after one second, and a long prompt takes a few more to be read again.
    "seam_s": "5",
}
"""Series that managed Prometheus scrapes from servers and proxies without an exporter, and the
limits on them.
"""


# The autoscaler's visibility log gives these reasons for adding no node.
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
_ERRORS = " OR ".join(f'"{reason}"' for reason in _NO_SCALE_UP)
_REFUSALS = " OR ".join(f'"{reason}"' for reason in _NO_PROVISIONING)
_POD_GROUPS = "jsonPayload.noDecisionStatus.noScaleUp.unhandledPodGroups"
_SCALE_FAILURES = (
    'resource.type="k8s_cluster" AND resource.labels.cluster_name="$cluster" AND '
    'log_id("container.googleapis.com/cluster-autoscaler-visibility") AND '
    f"(jsonPayload.resultInfo.results.errorMsg.messageId=({_ERRORS}) OR "
    f"{_POD_GROUPS}.napFailureReasons.messageId=({_REFUSALS}))"
)


def _exporter_series(metric: str) -> str:
    """Return Cloud Monitoring's PromQL name of a metric that the exporter writes."""
    return f'custom_googleapis_com:holdfast_{metric}{{cluster_name="$cluster"$in_namespaces}}'


SERIES = {
    **{metric: _exporter_series(metric) for metric in METRICS},
    **{field: _select(f"DCGM_FI_DEV_{field}") for field in GPU_FIELDS},
    **SERVING,
    "preemptions": preemptions("$cluster"),
    # The percentage of time in which a container used its GPU.
    "gpu_use": (
        "kubernetes_io:container_accelerator_duty_cycle"
        '{monitored_resource="k8s_container",cluster_name="$cluster"$in_pod_namespaces}'
    ),
    "dead_letters_held": (
        "pubsub_googleapis_com:subscription_num_undelivered_messages"
        '{subscription_id="$dead_letters"}'
    ),
    "scale_failures": _SCALE_FAILURES,
}
"""Placeholder of a query -> the series, or the log filter."""
