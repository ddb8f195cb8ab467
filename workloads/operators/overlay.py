"""Adapts an operator's vendored manifest to our settings, for one environment."""

import copy
import json
from hashlib import sha256

from holdfast.manifests.render_context import RenderContext
from holdfast.vocabulary.pools import Pool
from workloads.operators import settings
from workloads.operators.catalogue import (
    CRD,
    LABEL_OPERATOR,
    LABEL_VERSION,
    WEBHOOKS,
    Body,
    Operator,
    upstream,
)

CONFIG_FILE = "controller_manager_config.yaml"
# Annotation of the pod template, which makes new pods for a new configuration: a ConfigMap mounted
# by subPath never changes in a running pod.
ANNOTATION_CONFIG = "holdfast.dev/config-digest"
_ORDER = ("Namespace", CRD, "ResourceQuota", "ServiceAccount")


def objects(operator: Operator, context: RenderContext) -> list[Body]:
    """Returns the objects in the order in which they are applied.

    The order is namespace, definitions, rights, the rest, webhooks.
    """
    image = context.image(operator.name)
    bodies: list[Body] = []
    selector: Body = {}
    for vendored_body in upstream(operator):
        if not settings.stays(vendored_body):
            continue
        body = copy.deepcopy(vendored_body)
        _adapt(body, operator, image, context.system)
        bodies.append(body)
        if body["kind"] == "Deployment":
            selector = body["spec"]["selector"]
    bodies += settings.bounds(operator.namespace, selector)
    for body in bodies:
        labels = body["metadata"].setdefault("labels", {})
        labels |= {LABEL_OPERATOR: operator.name, LABEL_VERSION: f"v{operator.version}"}
    return sorted(bodies, key=_rank)


def _rank(body: Body) -> int:
    kind = body["kind"]
    if kind in _ORDER:
        return _ORDER.index(kind)
    if kind in WEBHOOKS:
        return len(_ORDER) + 2
    return len(_ORDER) + (1 if kind == "Deployment" else 0)


def _adapt(body: Body, operator: Operator, image: str, pool: Pool) -> None:
    match body["kind"]:
        case "Deployment":
            _place(body["spec"], operator, image, pool)
        case "ConfigMap":
            body["data"] = {CONFIG_FILE: configuration_text(operator)}
        case "Service" if "webhook" in body["metadata"]["name"]:
            body["spec"]["ports"][0]["targetPort"] = settings.WEBHOOK_PORT
        case kind if kind in WEBHOOKS:
            body["webhooks"] = settings.webhooks(operator.name, body["webhooks"])
        case _:
            pass


def configuration_text(operator: Operator) -> str:
    return json.dumps(settings.CONFIGURATIONS[operator.name], indent=2) + "\n"  # JSON is YAML


def _place(spec: Body, operator: Operator, image: str, pool: Pool) -> None:
    spec["replicas"] = settings.REPLICAS
    template = spec["template"]
    digest = sha256(configuration_text(operator).encode()).hexdigest()[:16]
    template["metadata"].setdefault("annotations", {})[ANNOTATION_CONFIG] = digest
    pod = template["spec"]
    pod |= {
        "priorityClassName": settings.PRIORITY,
        "nodeSelector": pool.selector(),
        "tolerations": pool.tolerations(),
        "affinity": _spread(spec["selector"]),
    }
    (container,) = pod["containers"]
    container |= {
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "resources": settings.RESOURCES[operator.name],
    }
    ports = [port for port in container["ports"] if port["name"] != "visibility"]
    for port in ports:
        if port["name"] == "webhook-server":
            port["containerPort"] = settings.WEBHOOK_PORT
    container["ports"] = ports


def _spread(selector: Body) -> Body:
    """Prefers different nodes; a system pool of one node must still get both replicas."""
    term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    preference = {"weight": 100, "podAffinityTerm": term}
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}
