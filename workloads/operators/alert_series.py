"""Whether the series that alerts read were ever written to Cloud Monitoring: an alert on a missing
series never fires.
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
_READ = re.compile(r"([a-zA-Z_:][\w:]*)\{")


def judged(
    api: Api,
    modules: Sequence[str],
    platform: Platform,
    client: monitoring_v3.MetricServiceClient | None = None,
) -> Answer:
    """`modules`: the environment's own alerts. `client`: by default one with the caller's
    credentials.

    Broken where GPU nodes run without GPU series. Unjudged for other series: most of them begin
    with a first job.
    """
    readers = read_by(
        each for each in alerts(EXAMPLE, modules) if platform.serving or each.name not in OF_SERVERS
    )
    existing = written(client, platform.project)
    lacking = sorted(readers.keys() - existing)
    if HEARTBEAT in existing:
        # A counter of the exporter begins with the first event that it counts.
        lacking = [name for name in lacking if not name.startswith(OURS)]
    found = "never written: " + "; ".join(
        f"{name} ({', '.join(readers[name])})" for name in lacking
    )
    if any(name.startswith(GPU) for name in lacking) and _has_gpu_nodes(api):
        return (
            False,
            found,
            "kubectl get pods -n gpu-metrics; security.gpu_exporter=True, then make apply",
        )
    if lacking:
        raise Unjudged(f"{found}. These alerts cannot fire before something writes the series")
    return True, f"{len(readers)} exist", ""


def read_by(every: Iterable[Alert]) -> Mapping[str, list[str]]:
    """PromQL name of a series -> the alerts that read it."""
    found: dict[str, list[str]] = {}
    for alert in every:
        for name in (
            dict.fromkeys(_READ.findall(alert.query)) if alert.source is AlertSource.PROMQL else ()
        ):
            found.setdefault(name, []).append(alert.name)
    return found


def written(client: monitoring_v3.MetricServiceClient | None, project: str) -> set[str]:
    """PromQL names of all metrics of the project, whether or not they have points today. Unjudged
    without access.
    """
    request = monitoring_v3.ListMetricDescriptorsRequest(
        name=f"projects/{project}", page_size=10_000
    )
    try:
        asked = client or monitoring_v3.MetricServiceClient()
        found = asked.list_metric_descriptors(request, retry=None, timeout=TIMEOUT_S)
        return {name for each in found for name in _promql_names(each.type)}
    except (exceptions.Forbidden, exceptions.Unauthorized) as error:
        needs = "roles/monitoring.viewer is needed"
        raise Unjudged(
            f"Cloud Monitoring of {project} may not be read, {needs}: {error}"
        ) from error
    except (exceptions.GoogleAPIError, GoogleAuthError) as error:
        raise Unjudged(f"Cloud Monitoring of {project} does not answer: {error}") from error


def _promql_names(metric_type: str) -> Iterator[str]:
    """`custom.googleapis.com/holdfast/x` -> `custom_googleapis_com:holdfast_x`; of managed
    Prometheus what was scraped.
    """
    domain, _, path = metric_type.partition("/")
    if domain != PROMETHEUS:
        yield ":".join(re.sub(r"\W", "_", part) for part in (domain, path))
        return
    name, _, kind = path.partition("/")
    yield from (
        f"{name}{part}"
        for part in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
    )


def _has_gpu_nodes(api: Api) -> bool:
    return any(True for _ in api.items("/api/v1/nodes", labelSelector=LABEL_ACCELERATOR))
