"""Builds autoscalers of servers and proxies, and the metrics that they read.

GKE's managed adapter reads a gauge from the pods' own endpoint, as an AutoscalingMetric names it:
nothing is installed, and Cloud Monitoring is not on the way.
"""

# Why it is so: infra/decisions/0129.

from collections.abc import Iterable, Iterator, Mapping

from holdfast.manifests.deployments import autoscaler
from holdfast.manifests.render_context import Body, manifest, meta
from holdfast.vocabulary.kubernetes import AUTOSCALING_METRIC_API, api_group
from holdfast.vocabulary.serving import LABEL_METRICS, Gauge

SCALE_DOWN_S = 300
"""Time before replicas end: a model takes minutes to come back."""


def scaler(
    name: str,
    namespace: str,
    replicas: tuple[int, int],
    targets: Mapping[Gauge, int],
) -> Body:
    """Scales a Deployment by requests that run or wait, which grow with load.

    The time in the queue does not. `targets` are the values for each replica, and the largest
    outcome counts.
    """
    min_replicas, max_replicas = replicas
    metrics: list[Body] = []
    for gauge, target in targets.items():
        source = {
            "metric": {"name": f"{api_group(AUTOSCALING_METRIC_API)}|{gauge.group}|{gauge.name}"},
            "target": {
                "averageValue": str(target),
                "type": "AverageValue",
            },
        }
        metrics.append({"pods": source, "type": "Pods"})
    return autoscaler(
        name,
        namespace,
        min_replicas,
        max_replicas,
        metrics,
        SCALE_DOWN_S,
        scaleUp={"stabilizationWindowSeconds": 0},
    )


def metrics(namespace: str, gauges: Iterable[Gauge]) -> Iterator[Body]:
    """Builds the AutoscalingMetric of each group; services of a namespace apply the same one."""
    groups: dict[str, list[Gauge]] = {}
    for gauge in gauges:
        groups.setdefault(gauge.group, []).append(gauge)
    for group, members in groups.items():
        endpoint = {"path": members[0].path, "port": members[0].port}
        series: list[Body] = []
        for gauge in members:
            names = {"name": gauge.name, "prometheusMetricName": gauge.series}
            series.append({"gauge": names})
        pods = {
            "containers": [{"endpoint": endpoint, "metrics": series}],
            "selector": {"matchLabels": {LABEL_METRICS: group}},
        }
        yield manifest(
            AUTOSCALING_METRIC_API,
            "AutoscalingMetric",
            meta(group, namespace),
            spec={"metrics": [{"pod": pods}]},
        )
