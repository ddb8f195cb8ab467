"""Kinds that only GKE serves, with the fields that its documentation names.

The API server refuses any other field, as GKE's does.
"""

from typing import Any

from holdfast.clients.api import Api
from tests.cluster.sim.waiting import until

CONDITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
STRING = {"type": "string"}
INTEGER = {"type": "integer"}
LABELS = {"type": "object", "additionalProperties": STRING}


def record(required: tuple[str, ...] = (), /, **properties: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | {"required": [*required]} if required else schema


def sequence(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


# https://docs.cloud.google.com/kubernetes-engine/docs/how-to/expose-custom-metrics-autoscaling
METRIC_NAME = STRING | {"pattern": "^[a-z0-9-]{1,63}$"}
GAUGE = record(("name", "prometheusMetricName"), name=METRIC_NAME, prometheusMetricName=STRING)
POD_METRIC = record(
    ("selector", "containers"),
    selector=record(("matchLabels",), matchLabels=LABELS),
    containers=sequence(
        record(
            ("endpoint", "metrics"),
            endpoint=record(("port",), port=INTEGER, path=STRING),
            metrics=sequence(record(("gauge",), gauge=GAUGE)),
        )
    ),
)
QUERY = record(("name", "query"), name=METRIC_NAME, query=STRING)
AUTOSCALING_METRIC = record(("metrics",), metrics=sequence(record(pod=POD_METRIC, promql=QUERY)))


def define(
    api: Api,
    group: str,
    version: str,
    kind: str,
    plural: str,
    spec: dict[str, Any],
) -> None:
    """Installs a kind whose spec has these fields and no other."""
    schema = record(spec=spec)
    schema["properties"]["status"] = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    }
    entry = {
        "name": version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    name = f"{plural}.{group}"
    body = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": name,
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [entry]},
    }
    api.apply(f"{CONDITIONS}/{name}", body)

    def serves() -> bool:
        listing = api.find(f"/apis/{group}/{version}") or {"resources": []}
        return any(resource["kind"] == kind for resource in listing["resources"])

    until(f"{kind} is served", serves)


def install(api: Api) -> None:
    define(
        api,
        "autoscaling.gke.io",
        "v1beta1",
        "AutoscalingMetric",
        "autoscalingmetrics",
        AUTOSCALING_METRIC,
    )
