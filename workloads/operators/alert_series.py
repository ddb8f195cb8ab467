"""Checks that the series that alerts read exist in Cloud Monitoring.

An alert on a missing series never fires.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from google.cloud import monitoring_v3

from holdfast.clients.api import Api
from holdfast.platform import Platform
from holdfast.support.checks import Answer
from holdfast.support.errors import Unjudged
from holdfast.vocabulary.pools import LABEL_ACCELERATOR
from monitoring.alerting.alert import EXAMPLE, Alert, AlertSource
from monitoring.alerting.alerts import OF_SERVERS, alerts

# Managed Prometheus appends the kind, as /gauge.
PROMETHEUS = "prometheus.googleapis.com"
GPU = "DCGM_"
OURS = "custom_googleapis_com:holdfast_"
HEARTBEAT = "custom_googleapis_com:holdfast_exporter_heartbeat_seconds"
TIMEOUT_S = 60.0
_NO_WORD = re.compile(r"\W")
_READ = re.compile(r"([a-zA-Z_:][\w:]*)\{")


def judge(
    api: Api,
    modules: Sequence[str],
    platform: Platform,
    client: monitoring_v3.MetricServiceClient | None = None,
) -> Answer:
    """Checks the series of all alerts, those of the environment's own `modules` included.

    Fails if GPU nodes run without GPU series. Raises Unjudged for other missing series: most of
    them begin with a first job. The default `client` has the caller's credentials.
    """
    readers = find_readers(_select_alerts(modules, platform))
    series = list_series(client, platform.project)
    missing_series = sorted(readers.keys() - series)
    items: list[str] = []
    is_gpu_missing = False
    for name in missing_series:
        # A counter of the exporter begins with the first event that it counts.
        if not name.startswith(OURS) or HEARTBEAT not in series:
            items.append(f"{name} ({', '.join(readers[name])})")
        if name.startswith(GPU):
            is_gpu_missing = True
    if not items:
        return True, f"{len(readers)} exist", ""
    fact = f"never written: {'; '.join(items)}"
    if is_gpu_missing and _has_gpu_nodes(api):
        fix = "kubectl get pods -n gpu-metrics; security.gpu_exporter=True, then make apply"
        return False, fact, fix
    raise Unjudged(f"{fact}. These alerts cannot fire before something writes the series")


def _select_alerts(modules: Sequence[str], platform: Platform) -> Iterator[Alert]:
    for alert in alerts(EXAMPLE, modules):
        if platform.serving or alert.name not in OF_SERVERS:
            yield alert


def find_readers(alerts: Iterable[Alert]) -> Mapping[str, list[str]]:
    """Returns the names of the alerts that read a series, by its PromQL name."""
    readers: dict[str, list[str]] = {}
    for alert in alerts:
        if alert.source is AlertSource.PROMQL:
            for name in dict.fromkeys(_READ.findall(alert.query)):
                readers.setdefault(name, []).append(alert.name)
    return readers


def list_series(client: monitoring_v3.MetricServiceClient | None, project: str) -> set[str]:
    """Returns the PromQL names of all metrics of the project, with or without points today.

    Raises Unjudged without access.
    """
    request = monitoring_v3.ListMetricDescriptorsRequest(
        name=f"projects/{project}", page_size=10_000
    )
    series: set[str] = set()
    try:
        client = client or monitoring_v3.MetricServiceClient()
        for metric in client.list_metric_descriptors(request, retry=None, timeout=TIMEOUT_S):
            series.update(_promql_names(metric.type))
    except (exceptions.Forbidden, exceptions.Unauthorized) as error:
        needs = "roles/monitoring.viewer is needed"
        raise Unjudged(
            f"Cloud Monitoring of {project} may not be read, {needs}: {error}"
        ) from error
    except (exceptions.GoogleAPIError, GoogleAuthError) as error:
        raise Unjudged(f"Cloud Monitoring of {project} does not answer: {error}") from error
    return series


def _promql_names(metric_type: str) -> list[str]:
    """Translates `custom.googleapis.com/holdfast/x` to `custom_googleapis_com:holdfast_x`.

    Metrics of managed Prometheus have the names that were scraped.
    """
    domain, _, path = metric_type.partition("/")
    if domain != PROMETHEUS:
        return [_NO_WORD.sub("_", domain) + ":" + _NO_WORD.sub("_", path)]
    name, _, kind = path.partition("/")
    if kind == "histogram":
        return [f"{name}_bucket", f"{name}_sum", f"{name}_count"]
    return [name]


def _has_gpu_nodes(api: Api) -> bool:
    nodes = api.items("/api/v1/nodes", labelSelector=LABEL_ACCELERATOR)
    return next(iter(nodes), None) is not None
