"""Churn of a period, from the exporter's own series in Cloud Monitoring. Why: infra/decisions/0071.

Guarantee: all of the period or Unjudged; a half-read answer is never returned.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from google.api_core import exceptions
from google.api_core.retry import Retry, if_exception_type
from google.cloud import monitoring_v3

from holdfast.clients.cloud_api import TRANSIENT
from holdfast.cost.churn.estimate import AGE_BANDS_H, Ages, Exposure, Group
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.telemetry import METRIC_PREFIX

# One page; the patience of a reader is for all its tries.
PAGE_S = 60.0
# Points of the newest minutes may not have arrived.
SETTLE_S = 300


@dataclass(frozen=True, slots=True)
class Increase:
    """By how much one counter grew."""

    labels: dict[str, str]
    value: float
    cluster: str = ""
    """`<location>/<name>`: names repeat over locations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    groups: dict[Group, Exposure]
    ages: Ages
    clusters: list[str]
    """That were added up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CloudReader:
    client: monitoring_v3.MetricServiceClient
    project: str
    cluster: str = ""
    """Name of the one to read; empty: all of the project."""
    patience_s: float = 60.0

    def measured(self, now_s: float, since_s: float) -> Measured:
        """Up to a few minutes ago. Raises Unjudged where no node was watched."""
        end_s = int(now_s) - SETTLE_S
        begin_s = max(0, end_s - int(since_s))
        seconds = self.increases("spot_node_seconds_total", begin_s, end_s)
        losses = self.increases("spot_node_losses_total", begin_s, end_s)
        # No time at risk is no quiet time: a rate of 0 would be the most wrong answer.
        if sum(each.value for each in seconds) <= 0:
            if self.cluster:
                where = f"cluster {self.cluster} of project {self.project}"
            else:
                where = f"project {self.project}"
            when = " to ".join(
                f"{datetime.fromtimestamp(t, UTC):%Y-%m-%d %H:%M}" for t in (begin_s, end_s)
            )
            raise Unjudged(f"no Spot node was watched in {where} from {when} UTC: no rate is known")
        groups, ages = _summed(seconds, losses)
        return Measured(
            groups=groups,
            ages=ages,
            clusters=sorted({each.cluster for each in seconds}),
        )

    def increases(self, metric: str, begin_s: int, end_s: int) -> list[Increase]:
        """Of each series over the whole period; the cloud's aligner knows where a counter
        restarted.
        """
        wanted = f'metric.type = "{METRIC_PREFIX}/{metric}" AND resource.type = "k8s_cluster"'
        if self.cluster:
            wanted += f' AND resource.labels.cluster_name = "{self.cluster}"'
        request = monitoring_v3.ListTimeSeriesRequest(
            name=f"projects/{self.project}",
            filter=wanted,
            interval={
                "start_time": {"seconds": begin_s},
                "end_time": {"seconds": end_s},
            },
            aggregation={
                "alignment_period": {"seconds": end_s - begin_s},
                "per_series_aligner": monitoring_v3.Aggregation.Aligner.ALIGN_DELTA,
            },
        )
        retry: Any = Retry(
            predicate=if_exception_type(*TRANSIENT),
            initial=0.2,
            maximum=5.0,
            timeout=self.patience_s,
        )
        try:
            pages = self.client.list_time_series(request, retry=retry, timeout=PAGE_S).pages
            return [each for page in pages for each in _increases(page, metric)]
        except exceptions.GoogleAPIError as error:
            # A RetryError hides the fault that was tried again.
            raise self._unjudged(getattr(error, "cause", None) or error, metric) from error

    def _unjudged(self, error: Exception, metric: str) -> Unjudged:
        where = f"Cloud Monitoring of project {self.project}"
        match error:
            case exceptions.Forbidden() | exceptions.Unauthorized():
                return Unjudged(
                    f"{where} may not be read: {error}; the reader needs roles/monitoring.viewer"
                )
            case exceptions.ResourceExhausted():
                return Unjudged(
                    f"{where}: the read quota is used up, try again in a minute: {error}"
                )
            case exceptions.NotFound():
                return Unjudged(
                    f"{where} has no series {METRIC_PREFIX}/{metric}: the exporter has never"
                    " written it"
                )
            case _:
                return Unjudged(f"{where} did not answer for {metric}: {error}")


def _increases(page: monitoring_v3.ListTimeSeriesResponse, metric: str) -> Iterable[Increase]:
    if page.execution_errors:
        faults = "; ".join(error.message for error in page.execution_errors)
        raise Unjudged(f"Cloud Monitoring could not read all of {metric}: {faults}")
    for series in page.time_series:
        labels, at = dict(series.metric.labels), series.resource.labels
        cluster = f"{at['location']}/{at['cluster_name']}"
        for point in series.points:
            # A double of 0 and an unset one read the same, so the one that is set counts.
            yield Increase(
                labels, float(point.value.double_value or point.value.int64_value), cluster
            )


def _summed(
    seconds: Sequence[Increase], losses: Sequence[Increase]
) -> tuple[dict[Group, Exposure], Ages]:
    groups: dict[Group, Exposure] = defaultdict(Exposure)
    ages: dict[float, Exposure] = defaultdict(Exposure)
    found = [(each.labels, Exposure(hours=each.value / 3_600)) for each in seconds]
    found += [(each.labels, Exposure(events=each.value)) for each in losses]
    for labels, exposure in found:
        groups[Group.of(labels)] += exposure
        ages[_age_h(labels)] += exposure
    return dict(sorted(groups.items())), [
        (low, high, ages[low]) for low, high in pairwise(AGE_BANDS_H)
    ]


def _age_h(labels: dict[str, str]) -> float:
    """Lower end of the band."""
    given = labels.get("age_h", "0")
    # Bands of two versions overlap, and their time at risk would be counted twice.
    if given not in [f"{low:g}" for low in AGE_BANDS_H]:
        raise Unjudged(f"a churn series has an age band of another version: {labels}")
    return float(given)


def cloud_reader(project: str, cluster: str = "") -> CloudReader:
    """InputError for names that no project and no cluster has: they become part of a request."""
    from google.auth.exceptions import DefaultCredentialsError

    if not re.fullmatch(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", project):
        allowed = "6 to 30 letters, digits and dashes, as acme-ai-prod"
        raise InputError(
            "--project is no project id",
            got=project,
            allowed=allowed,
            fix="give the id, not the name",
        )
    if cluster and not re.fullmatch(r"[a-z][a-z0-9-]{0,39}", cluster):
        allowed = "up to 40 letters, digits and dashes, as holdfast-prod"
        raise InputError(
            "--cluster is no cluster name",
            got=cluster,
            allowed=allowed,
            fix="give its name alone",
        )
    try:
        return CloudReader(
            client=monitoring_v3.MetricServiceClient(),
            project=project,
            cluster=cluster,
        )
    except DefaultCredentialsError as error:
        raise Unjudged(f"no credentials for Cloud Monitoring: {error}") from error
