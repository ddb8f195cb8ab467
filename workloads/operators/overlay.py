"""An operator's vendored manifest with our settings, for one environment. Pure: what is applied, as
objects.
"""

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
# A ConfigMap mounted by subPath never changes in a running pod; with this on the template it is
# another pod.
ANNOTATION_CONFIG = "holdfast.dev/config-digest"
_ORDER = ("Namespace", CRD, "ResourceQuota", "ServiceAccount")


def objects(operator: Operator, context: RenderContext) -> list[Body]:
    """In the order in which they are applied: namespace, definitions, rights, the rest, webhooks
    last.
    """
    image = context.image(operator.name)
    pool = context.system
    made = [
        _adapted(copy.deepcopy(body), operator, image, pool)
        for body in upstream(operator)
        if settings.stays(body)
    ]
    selector = next(body["spec"]["selector"] for body in made if body["kind"] == "Deployment")
    made += settings.bounds(operator.namespace, selector)
    for body in made:
        labels = body["metadata"].setdefault("labels", {})
        labels |= {LABEL_OPERATOR: operator.name, LABEL_VERSION: f"v{operator.version}"}
    return sorted(made, key=_rank)


def _rank(body: Body) -> int:
    kind = body["kind"]
    if kind in _ORDER:
        return _ORDER.index(kind)
    return len(_ORDER) + {"Deployment": 1}.get(kind, 2 if kind in WEBHOOKS else 0)


def _adapted(body: Body, operator: Operator, image: str, pool: Pool) -> Body:
    match body["kind"]:
        case "Deployment":
            _placed(body["spec"], operator, image, pool)
        case "ConfigMap":
            body["data"] = {CONFIG_FILE: configuration_text(operator)}
        case "Service" if "webhook" in body["metadata"]["name"]:
            body["spec"]["ports"][0]["targetPort"] = settings.WEBHOOK_PORT
        case kind if kind in WEBHOOKS:
            body["webhooks"] = settings.webhooks(operator.name, body["webhooks"])
        case _:
            pass
    return body


def configuration_text(operator: Operator) -> str:
    return json.dumps(settings.CONFIGURATIONS[operator.name], indent=2) + "\n"  # JSON is YAML


def _placed(spec: Body, operator: Operator, image: str, pool: Pool) -> None:
    spec["replicas"] = settings.REPLICAS
    template = spec["template"]
    digest = sha256(configuration_text(operator).encode()).hexdigest()[:16]
    template["metadata"].setdefault("annotations", {})[ANNOTATION_CONFIG] = digest
    pod = template["spec"]
    pod |= {
        "priorityClassName": settings.PRIORITY,
        "nodeSelector": pool.selector(),
        "tolerations": pool.tolerations(),
        "affinity": _apart(spec["selector"]),
    }
    (container,) = pod["containers"]
    container |= {
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "resources": settings.RESOURCES[operator.name],
    }
    kept = [port for port in container["ports"] if port["name"] != "visibility"]
    for port in kept:
        if port["name"] == "webhook-server":
            port["containerPort"] = settings.WEBHOOK_PORT
    container["ports"] = kept


def _apart(selector: Body) -> Body:
    """Preferred, not required: a system pool of one node must still get both replicas."""
    term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    return {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": term}
            ]
        }
    }
