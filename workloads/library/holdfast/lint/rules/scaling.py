"""HF156, HF159, HF164, HF521: metrics, bounds and directions of autoscalers.

Which metrics there are: infra/decisions/0129.
"""

from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.examples import write_scaler
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import SCALER
from holdfast.lint.objects import (
    Container,
    Object,
    Pod,
    as_int,
    as_list,
    as_map,
    as_maps,
    as_text,
    dig,
)
from holdfast.lint.registry import Context, rule
from holdfast.support.values import quantity
from holdfast.vocabulary.kubernetes import AUTOSCALING_METRIC_API, api_group

METRIC = "AutoscalingMetric"
GROUP = api_group(AUTOSCALING_METRIC_API)
DOC_HPA = "https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/"
_MOST_OVER_REQUEST = 4
_DECISION = "decision 0129 of Holdfast"
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


def _write_behavior(behavior: str) -> str:
    return f"""\
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{name: web, namespace: serving}}
spec:
  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}
  minReplicas: 2
  maxReplicas: 8
  {behavior}
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


@rule(
    "HF521",
    "scaler-bounds-wrong",
    Severity.ERROR,
    on=Object,
    kinds=(SCALER,),
    what="The bounds or the metrics of an autoscaler cannot be met.",
    why="The API server refuses it, or it never scales: the replicas stay as they are.",
    source=DOC_HPA,
    fix="minReplicas at most maxReplicas; request what it measures",
    base="serving",
    bad=write_scaler(min_replicas=8),
    good=write_scaler(),
)
def scaler_bounds_wrong(obj: Object, context: Context) -> Iterator[Hit]:
    min_replicas = as_int(obj.spec.get("minReplicas"))
    max_replicas = as_int(obj.spec.get("maxReplicas"))
    if max_replicas is not None and max_replicas < 1:
        yield Hit(("spec", "maxReplicas"), f"maxReplicas is {max_replicas}")
    elif max_replicas is not None and (min_replicas or 1) > max_replicas:
        yield Hit(
            ("spec", "minReplicas"),
            f"minReplicas {min_replicas or 1} is above maxReplicas {max_replicas}",
        )
    if min_replicas == 0 and not any(
        metric.get("type") in ("External", "Object") for metric in as_maps(obj.spec.get("metrics"))
    ):
        yield Hit(("spec", "minReplicas"), "0 needs a metric of type External or Object")
    yield from _check_targets(obj)
    target = as_text(dig(obj.spec, "scaleTargetRef", "name"))
    kind = as_text(dig(obj.spec, "scaleTargetRef", "kind"))
    if kind in ("Job", "JobSet", "CronJob", "DaemonSet", "Pod"):
        yield Hit(("spec", "scaleTargetRef", "kind"), f"a {kind} has no replicas to scale")
    workload = context.index.find(kind, target, obj.namespace)
    if workload and workload.spec.get("replicas") == 0:
        yield Hit(("spec", "scaleTargetRef"), f"{target} has 0 replicas, which turns scaling off")
    for pod in workload.pods if workload else []:
        yield from _check_metrics(obj, pod)
    rivals = context.index.list_namespace(SCALER, obj.namespace)
    for rival in rivals:
        is_rival = rival.spec.get("scaleTargetRef") == obj.spec.get("scaleTargetRef")
        if is_rival and rival.name != obj.name and rival.file == obj.file:
            yield Hit(("spec", "scaleTargetRef"), f"{rival.name} scales {target} too")
            return


_TARGETS = {
    "Utilization": "averageUtilization",
    "AverageValue": "averageValue",
    "Value": "value",
}


def _check_targets(scaler: Object) -> Iterator[Hit]:
    """Yields targets whose type is not that of their value."""
    for index, metric in enumerate(as_maps(scaler.spec.get("metrics"))):
        kind = as_text(metric.get("type"))
        field = f"{kind[:1].lower()}{kind[1:]}"
        if kind and field not in metric:
            yield Hit(("spec", "metrics", index, "type"), f"type {kind} has no {field}")
        target = as_map(dig(metric, field, "target"))
        value = _TARGETS.get(as_text(target.get("type")))
        if value and target.get(value) is None:
            path = ("spec", "metrics", index, field, "target")
            yield Hit(path, f"type {target['type']} needs {value}")
        for name in _TARGETS.values():
            amount = quantity(target.get(name))
            if amount is not None and amount <= 0:
                yield Hit(("spec", "metrics", index, field, "target", name), "is not above 0")
        if kind == "Pods" and target.get("type") not in (None, "AverageValue"):
            path = ("spec", "metrics", index, field, "target", "type")
            yield Hit(path, "a metric of pods has an AverageValue")


def _check_metrics(scaler: Object, pod: Pod) -> Iterator[Hit]:
    """Yields the metrics of a scaler that a pod cannot give, or targets that it cannot reach."""
    for path, source in _list_sources(scaler):
        name = as_text(source.get("name"))
        container_name = source.get("container")
        containers = pod.main_containers
        if container_name:
            containers = [item for item in containers if item.name == container_name]
            if not containers:
                yield Hit(path, f"no container {container_name}")
        target = as_map(source.get("target"))
        requests = [quantity(container.request(name)) for container in containers]
        if target.get("type") == "Utilization" and None in requests:
            container = containers[requests.index(None)]
            yield Hit(path, f"measures {name} by its request, and {container.name} has none")
            continue
        yield from _check_reach(path, name, target, containers)


def _list_sources(scaler: Object) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields the sources of a scaler that are resources of its pods, each with its path."""
    share = scaler.spec.get("targetCPUUtilizationPercentage")
    if share is not None:
        target = {"type": "Utilization", "averageUtilization": share}
        yield ("spec", "targetCPUUtilizationPercentage"), {"name": "cpu", "target": target}
    for index, metric in enumerate(as_maps(scaler.spec.get("metrics"))):
        for field in ("resource", "containerResource"):
            if isinstance(metric.get(field), dict):
                yield ("spec", "metrics", index, field), metric[field]


def _check_reach(
    path: Path, name: str, target: dict[str, Any], containers: list[Container]
) -> Iterator[Hit]:
    """Yields a target that is above what the limits let the containers use."""
    request = _sum_amounts([container.request(name) for container in containers])
    limit = _sum_amounts([container.limit(name) for container in containers])
    share = quantity(target.get("averageUtilization"))
    amount = quantity(target.get("averageValue"))
    # Without a limit a pod may use a few times its request, and hardly more.
    bound = limit or request * _MOST_OVER_REQUEST
    if share and request and share / 100 * request > bound:
        yield Hit(path, f"{share:g} % of the request of {name} is more than a pod can use")
    elif amount and bound and amount > bound:
        yield Hit(path, f"{amount:g} of {name} is more than a pod can use: {bound:g}")


def _sum_amounts(amounts: list[Any]) -> float:
    """Adds up amounts; 0 where one is missing."""
    numbers = [quantity(amount) for amount in amounts]
    return 0.0 if None in numbers else sum(number or 0.0 for number in numbers)


@rule(
    "HF164",
    "scaler-cannot-move",
    Severity.WARNING,
    on=Object,
    kinds=(SCALER,),
    what=(
        "A direction of an autoscaler is turned off, or its workload states replicas beyond its"
        " bounds."
    ),
    why=(
        "Without scaling up, requests wait at any load; without scaling down, machines are paid for"
        " and idle. Each apply of a Deployment with replicas undoes what was scaled."
    ),
    source=DOC_HPA,
    fix="leave selectPolicy out",
    bad=_write_behavior("behavior: {scaleUp: {selectPolicy: Disabled}}"),
    good=_write_behavior("behavior: {scaleUp: {selectPolicy: Max}}"),
)
def check_directions(obj: Object, context: Context) -> Iterator[Hit]:
    for direction in ("scaleUp", "scaleDown"):
        path = ("spec", "behavior", direction)
        if dig(obj.body, *path, "selectPolicy") == "Disabled":
            yield Hit((*path, "selectPolicy"), f"never does {direction}")
        if dig(obj.body, *path, "policies") == []:
            yield Hit((*path, "policies"), f"no policy: never does {direction}")
    kind, name = (as_text(dig(obj.spec, "scaleTargetRef", key)) for key in ("kind", "name"))
    workload = context.index.find(kind, name, obj.namespace)
    replicas = as_int(workload.spec.get("replicas")) if workload else None
    bounds = [as_int(obj.spec.get(field)) for field in ("minReplicas", "maxReplicas")]
    if replicas and None not in bounds and not (bounds[0] or 1) <= replicas <= (bounds[1] or 1):
        message = f"{name} states {replicas} replicas: each apply undoes what was scaled"
        yield Hit(("spec", "scaleTargetRef"), message)
