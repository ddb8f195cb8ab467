"""HF156, HF159: metrics that autoscalers read. Source: infra/decisions/0129."""

from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import SCALER
from holdfast.lint.objects import Object, as_list, as_map, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.vocabulary.kubernetes import AUTOSCALING_METRIC_API, api_group

METRIC = "AutoscalingMetric"
GROUP = api_group(AUTOSCALING_METRIC_API)
_DECISION = "infra/decisions/0129"
# The objects by which an adapter that someone installs claims an API of metrics.
_ADAPTED = ("v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io")
_ADAPTED_EXTERNAL = ("v1beta1.external.metrics.k8s.io",)


def _scaler(metric: str, target: str = "web") -> str:
    return f"""\
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{name: {target}, namespace: serving}}
spec:
  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {target}}}
  minReplicas: 2
  maxReplicas: 8
  metrics:
  - type: Pods
    pods: {{metric: {{name: {metric}}}, target: {{type: AverageValue, averageValue: "8"}}}}
"""


def _metric(*names: str) -> str:
    gauges = ", ".join(
        f"{{gauge: {{name: {name}, prometheusMetricName: {name}}}}}" for name in names
    )
    return f"""\
---
apiVersion: {AUTOSCALING_METRIC_API}
kind: {METRIC}
metadata: {{name: web, namespace: serving}}
spec:
  metrics:
  - pod:
      selector: {{matchLabels: {{app: web}}}}
      containers: [{{endpoint: {{port: 8080, path: /metrics}}, metrics: [{gauges}]}}]
"""


@rule(
    "HF156",
    "scaler-without-metric",
    Severity.ERROR,
    on=Object,
    kinds=(SCALER,),
    what="An autoscaler reads a metric that nothing serves.",
    why=(
        "It stays at the replicas that it has, whatever the load, and only its own conditions say"
        " so. GKE's managed adapter serves what an AutoscalingMetric of the same namespace names;"
        " any other name needs an adapter that someone installs."
    ),
    source=_DECISION,
    fix=f"add an {METRIC}, and name the metric {GROUP}|ITS-NAME|METRIC",
    bad=_scaler("prometheus.googleapis.com|requests|gauge"),
    good=_scaler(f"{GROUP}|web|requests") + _metric("requests"),
)
def scaler_without_metric(obj: Object, context: Context) -> Iterator[Hit]:
    for number, metric in enumerate(as_list(obj.spec.get("metrics"))):
        kind = as_text(as_map(metric).get("type"))
        name = as_text(dig(metric, kind.lower(), "metric", "name"))
        adapters = {
            "Pods": _ADAPTED,
            "Object": _ADAPTED,
            "External": _ADAPTED_EXTERNAL,
        }
        if not name or kind not in adapters:
            continue
        path = ("spec", "metrics", number)
        group, _, rest = name.partition("|")
        if group != GROUP:
            is_adapted = any(context.index.find_all("APIService", api) for api in adapters[kind])
            if not is_adapted:
                yield Hit(path, f"{name} needs an adapter, and none is among the files examined")
            continue
        owner, _, metric_name = rest.partition("|")
        source = context.index.find(METRIC, owner, obj.namespace)
        if source is None:
            yield Hit(path, f"there is no {METRIC} {owner} among the files examined")
        elif metric_name not in list_metrics(source):
            yield Hit(path, f"{METRIC} {owner} has no metric {metric_name}")


@rule(
    "HF159",
    "metric-named-twice",
    Severity.ERROR,
    on=Object,
    kinds=(METRIC, SCALER),
    what="An autoscaler or an AutoscalingMetric has one metric twice.",
    why="One of the two is ignored, and which one is not defined.",
    source=_DECISION,
    fix="give each metric a name of its own",
    bad=_metric("requests", "requests").removeprefix("---\n"),
    good=_metric("running", "waiting").removeprefix("---\n"),
)
def metric_named_twice(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind == METRIC:
        names = list_metrics(obj)
    else:
        names = []
        for metric in as_list(obj.spec.get("metrics")):
            kind = as_text(as_map(metric).get("type")).lower()
            if not dig(metric, kind, "metric", "selector"):
                names.append(as_text(dig(metric, kind, "metric", "name")))
    for name in sorted({name for name in names if name and names.count(name) > 1}):
        yield Hit(("spec", "metrics"), f"{name} is there {names.count(name)} times")


def list_metrics(source: Object) -> list[str]:
    """Returns the names of the metrics of an AutoscalingMetric."""
    names: list[str] = []
    for entry in as_list(source.spec.get("metrics")):
        names.append(as_text(dig(entry, "promql", "name")))
        for container in as_list(dig(entry, "pod", "containers")):
            for gauge in as_list(as_map(container).get("metrics")):
                names.append(as_text(dig(gauge, "gauge", "name")))
    return [name for name in names if name]
