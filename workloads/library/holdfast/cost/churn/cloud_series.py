"""Reads the churn of a period from the exporter's series in Cloud Monitoring.

Why: infra/decisions/0071. Guarantee: all of the period or Unjudged; an incomplete answer is never
returned.
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

# Timeout of one page; the patience of a reader covers all its tries.
PAGE_S = 60.0
# Points of the newest minutes may not have arrived.
SETTLE_S = 300


@dataclass(frozen=True, slots=True)
class Increase:
    """The growth of one counter."""

    labels: dict[str, str]
    value: float
    cluster: str = ""
    """Its cluster as `<location>/<name>`: names repeat over locations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    groups: dict[Group, Exposure]
    ages: Ages
    clusters: list[str]
    """Clusters that were added up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CloudReader:
    client: monitoring_v3.MetricServiceClient
    project: str
    cluster: str = ""
    """Name of the cluster to read; empty: all of the project."""
    patience_s: float = 60.0

    def measure(self, now_s: float, since_s: float) -> Measured:
        """Measures the churn up to a few minutes ago. Raises Unjudged if no node was watched."""
        end_s = int(now_s) - SETTLE_S
        begin_s = max(0, end_s - int(since_s))
        seconds = self.increases("spot_node_seconds_total", begin_s, end_s)
        losses = self.increases("spot_node_losses_total", begin_s, end_s)
        total_s = sum(increase.value for increase in seconds)
        # Without time at risk the rate is unknown; 0 would be the most wrong answer.
        if total_s <= 0:
            source = f"project {self.project}"
            if self.cluster:
                source = f"cluster {self.cluster} of {source}"
            period = f"{_format_minute(begin_s)} to {_format_minute(end_s)}"
            raise Unjudged(
                f"no Spot node was watched in {source} from {period} UTC: no rate is known"
            )
        groups, ages = _add_up(seconds, losses)
        return Measured(
            groups=groups,
            ages=ages,
            clusters=sorted({increase.cluster for increase in seconds}),
        )

    def increases(self, metric: str, begin_s: int, end_s: int) -> list[Increase]:
        """Returns the growth of each series over the whole period.

        The cloud's aligner knows where a counter restarted. Raises Unjudged if it is incomplete.
        """
        conditions = [
            f'metric.type = "{METRIC_PREFIX}/{metric}"',
            'resource.type = "k8s_cluster"',
        ]
        if self.cluster:
            conditions.append(f'resource.labels.cluster_name = "{self.cluster}"')
        request = monitoring_v3.ListTimeSeriesRequest(
            name=f"projects/{self.project}",
            filter=" AND ".join(conditions),
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
        increases: list[Increase] = []
        try:
            pages = self.client.list_time_series(request, retry=retry, timeout=PAGE_S).pages
            for page in pages:
                increases += _list_increases(page, metric)
        except exceptions.GoogleAPIError as error:
            # A RetryError hides the error that was retried.
            cause = getattr(error, "cause", None) or error
            raise self._explain_failure(cause, metric) from error
        return increases

    def _explain_failure(self, error: Exception, metric: str) -> Unjudged:
        source = f"Cloud Monitoring of project {self.project}"
        match error:
            case exceptions.Forbidden() | exceptions.Unauthorized():
                return Unjudged(
                    f"{source} may not be read: {error}; the reader needs roles/monitoring.viewer"
                )
            case exceptions.ResourceExhausted():
                return Unjudged(
                    f"{source}: the read quota is used up, try again in a minute: {error}"
                )
            case exceptions.NotFound():
                return Unjudged(
                    f"{source} has no series {METRIC_PREFIX}/{metric}: the exporter has never"
                    " written it"
                )
            case _:
                return Unjudged(f"{source} did not answer for {metric}: {error}")


def _format_minute(time_s: int) -> str:
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M}"


def _list_increases(page: monitoring_v3.ListTimeSeriesResponse, metric: str) -> Iterable[Increase]:
    if page.execution_errors:
        errors = "; ".join(error.message for error in page.execution_errors)
        raise Unjudged(f"Cloud Monitoring could not read all of {metric}: {errors}")
    for series in page.time_series:
        labels = dict(series.metric.labels)
        resource = series.resource.labels
        cluster = f"{resource['location']}/{resource['cluster_name']}"
        for point in series.points:
            # A double of 0 and an unset one read the same, so the field that is set counts.
            value = float(point.value.double_value or point.value.int64_value)
            yield Increase(labels, value, cluster)


def _add_up(
    seconds: Sequence[Increase], losses: Sequence[Increase]
) -> tuple[dict[Group, Exposure], Ages]:
    groups: dict[Group, Exposure] = defaultdict(Exposure)
    exposure_by_age: dict[float, Exposure] = defaultdict(Exposure)

    def add(labels: dict[str, str], exposure: Exposure) -> None:
        groups[Group.of(labels)] += exposure
        exposure_by_age[_find_age_h(labels)] += exposure

    for increase in seconds:
        add(increase.labels, Exposure(hours=increase.value / 3_600))
    for increase in losses:
        add(increase.labels, Exposure(events=increase.value))
    ages: list[tuple[float, float, Exposure]] = []
    for low, high in pairwise(AGE_BANDS_H):
        ages.append((low, high, exposure_by_age[low]))
    return dict(sorted(groups.items())), ages


def _find_age_h(labels: dict[str, str]) -> float:
    """Returns the lower end of the age band.

    Raises Unjudged for a band of another version: bands of two versions overlap, and their time at
    risk would be counted twice.
    """
    band = labels.get("age_h", "0")
    if band not in [f"{low:g}" for low in AGE_BANDS_H]:
        raise Unjudged(f"a churn series has an age band of another version: {labels}")
    return float(band)


def cloud_reader(project: str, cluster: str = "") -> CloudReader:
    """Makes a reader for a project.

    Raises InputError for names that no project or cluster can have, because they become part of a
    request. Raises Unjudged without credentials.
    """
    from google.auth.exceptions import DefaultCredentialsError

    if not re.fullmatch(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", project):
        raise InputError(
            "--project is no project id",
            got=project,
            allowed="6 to 30 letters, digits and dashes, as acme-ai-prod",
            fix="give the id, not the name",
        )
    if cluster and not re.fullmatch(r"[a-z][a-z0-9-]{0,39}", cluster):
        raise InputError(
            "--cluster is no cluster name",
            got=cluster,
            allowed="up to 40 letters, digits and dashes, as holdfast-prod",
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
