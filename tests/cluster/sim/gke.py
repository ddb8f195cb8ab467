"""Kinds that only GKE serves, with the fields that its documentation names.

The API server refuses any other field, as GKE's does.
"""

import json
import os
from pathlib import Path
from typing import Any

import yaml

from holdfast.clients.api import Api
from tests.cluster.sim.waiting import until
from tests.support import ran, require
from tests.tools.build import TOOLS, find_go

CONDITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
STRING = {"type": "string"}
INTEGER = {"type": "integer"}
LABELS = {"type": "object", "additionalProperties": STRING}


def record(required: tuple[str, ...] = (), /, **properties: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | {"required": [*required]} if required else schema


def sequence(items: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "array",
        "items": items,
        "minItems": 1,
    }


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


# https://docs.cloud.google.com/kubernetes-engine/docs/how-to/configure-gateway-resources
TARGET = record(
    ("group", "kind", "name"),
    group=STRING,
    kind=STRING,
    name=STRING,
)
BACKEND_POLICY = record(
    ("targetRef",),
    default=record(
        timeoutSec=INTEGER | {"minimum": 1, "maximum": 2_147_483_647},
        connectionDraining=record(
            drainingTimeoutSec=INTEGER | {"minimum": 0, "maximum": 3_600},
        ),
        iap=record(("enabled",), enabled={"type": "boolean"}),
    ),
    targetRef=TARGET,
)
HTTP_CHECK = record(
    portSpecification=STRING,
    port=INTEGER,
    requestPath=STRING,
)
HEALTH_CHECK = record(
    ("targetRef",),
    default=record(
        checkIntervalSec=INTEGER | {"minimum": 1, "maximum": 300},
        timeoutSec=INTEGER | {"minimum": 1, "maximum": 300},
        healthyThreshold=INTEGER | {"minimum": 1, "maximum": 10},
        unhealthyThreshold=INTEGER | {"minimum": 1, "maximum": 10},
        config=record(("type",), type=STRING, httpHealthCheck=HTTP_CHECK),
    ),
    targetRef=TARGET,
)


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
    names = {
        "plural": plural,
        "singular": kind.lower(),
        "kind": kind,
    }
    name = f"{plural}.{group}"
    body = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": name,
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": names,
            "versions": [entry],
        },
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
    group = "networking.gke.io"
    define(api, group, "v1", "GCPBackendPolicy", "gcpbackendpolicies", BACKEND_POLICY)
    define(api, group, "v1", "HealthCheckPolicy", "healthcheckpolicies", HEALTH_CHECK)
    _install_gateway_api(api)


def _install_gateway_api(api: Api) -> None:
    """Installs the kinds of the Gateway API's standard channel, from its own Go module.

    Go downloads the module if this machine has the built tools and not what they were built of.
    """
    download = ran(
        [find_go(TOOLS["kueue"]), "mod", "download", "-json", "sigs.k8s.io/gateway-api"],
        TOOLS["kueue"].pins,
        os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"},
    )
    require(download.returncode == 0, f"no module of the Gateway API: {download.stdout}")
    module = Path(json.loads(download.stdout)["Dir"])
    for plural in ("gateways", "httproutes"):
        path = module / f"config/crd/standard/gateway.networking.k8s.io_{plural}.yaml"
        body = yaml.safe_load(path.read_text())
        api.apply(f"{CONDITIONS}/{body['metadata']['name']}", body)
        served = f"/apis/gateway.networking.k8s.io/v1/{plural}"
        until(f"{plural} are served", lambda served=served: api.find(served) is not None)
