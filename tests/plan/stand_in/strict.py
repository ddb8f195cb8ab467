"""What Google's APIs refuse, and fill in, beyond their published definitions: names, labels, masks, quota, defaults."""

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.plan.stand_in import definitions
from tests.plan.stand_in.definitions import Call, Json

RFC1035 = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
# By call: https://cloud.google.com/kubernetes-engine/docs/reference/rest, /compute/docs/naming-resources,
# /storage/docs/buckets#naming, /pubsub/docs/pubsub-basics#resource_names, /iam/docs/service-accounts-create.
NAMES = {
    "container.projects.locations.clusters.create": r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?",
    "container.projects.locations.clusters.nodePools.create": r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?",
    "storage.buckets.insert": r"(?!goog)[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9]",
    "pubsub.projects.topics.create": r"(?!goog)[A-Za-z][-A-Za-z0-9_.~+%]{2,254}",
    "pubsub.projects.subscriptions.create": r"(?!goog)[A-Za-z][-A-Za-z0-9_.~+%]{2,254}",
    "sql.instances.insert": r"[a-z][-a-z0-9]{0,96}",
}
LABELS = ("labels", "userLabels", "resourceLabels")
# The provider adds one key below the prefix that is Google's.
LABEL_KEY = re.compile(r"goog-terraform-provisioned|(?!goog)[a-z][-_a-z0-9]{0,62}")
LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}")
NODE_LABEL_KEY = re.compile(r"([-.a-z0-9]{1,253}/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
# Only GKE writes labels below these: /kubernetes-engine/docs/how-to/creating-managing-labels.
NODE_LABEL_RESERVED = re.compile(
    r"(.*\.)?(kubernetes|k8s)\.io/|cloud\.google\.com/(?!compute-class)|components\.gke\.io/"
)
# By collection, what no update may change.
IMMUTABLE = {
    "artifactregistry.projects.locations.repositories": ("format", "kmsKeyName"),
    "compute.networks": ("autoCreateSubnetworks",),
    "compute.subnetworks": ("ipCidrRange", "network", "region"),
    "dns.managedZones": ("dnsName", "visibility"),
    "pubsub.projects.subscriptions": ("enableMessageOrdering", "filter", "topic"),
    "sql.instances": ("name", "region"),
    "storage.buckets": ("hierarchicalNamespace", "location"),
}
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}


def problems(call: Call, body: Json) -> Iterator[str]:
    """Of a new resource or a change."""
    resource = body.get("cluster", body.get("nodePool", body)) if call.api == "container" else body
    grammar = NAMES.get(call.id) or (RFC1035 if call.api == "compute" and call.action == "insert" else "")
    name = str(resource.get("name", "")) or call.created_path.rpartition("/")[2]
    if grammar and not re.fullmatch(grammar, name.rpartition("/")[2]):
        yield f"Invalid name {name!r}: it must match {grammar}"
    for place, labels in _labels(resource):
        if call.api == "monitoring" and place == "labels":
            continue  # settings of a notification channel
        node = call.api == "container" and place == "labels"
        yield from _node_label_problems(labels) if node else _label_problems(labels)
    surge = resource.get("upgradeSettings", {}) if call.api == "container" else {}
    if surge.get("strategy") == "SURGE" and not surge.get("maxSurge") and not surge.get("maxUnavailable"):
        yield "upgradeSettings: maxSurge and maxUnavailable may not both be 0"


def _labels(value: Any) -> Iterator[tuple[str, Mapping[str, str]]]:
    if isinstance(value, list):
        for inner in value:
            yield from _labels(inner)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key in LABELS and isinstance(inner, dict):
                yield key, inner
            else:
                yield from _labels(inner)


def _label_problems(labels: Mapping[str, str]) -> Iterator[str]:
    if len(labels) > 64:
        yield f"{len(labels)} labels: at most 64"
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key) or not LABEL_VALUE.fullmatch(value or ""):
            yield f"Invalid label {key!r}: {value!r}"


def _node_label_problems(labels: Mapping[str, str]) -> Iterator[str]:
    for key in labels:
        if not NODE_LABEL_KEY.fullmatch(key):
            yield f"Invalid node label {key!r}"
        if NODE_LABEL_RESERVED.match(key):
            yield f"Node label {key!r} is reserved"


def over_quota(quota: Mapping[str, int], pools: Iterator[Json]) -> Iterator[str]:
    """`quota`: GPUs by model that may run at once, as `nvidia-l4`."""
    running: dict[str, int] = {}
    for pool in pools:
        for gpu in pool.get("config", {}).get("accelerators", ()):
            nodes = int(pool.get("initialNodeCount", 0)) * max(1, len(pool.get("locations", ())))
            running[gpu["acceleratorType"]] = running.get(gpu["acceleratorType"], 0) + nodes * int(
                gpu["acceleratorCount"]
            )
    for model, count in running.items():
        if count > quota.get(model, count):
            yield f"Insufficient quota for {model}: {count} requested, limit {quota[model]}"


def change(call: Call, resource: Json) -> tuple[Json, list[str]]:
    """The resource after an update, and what is wrong with it."""
    body, mask = _masked(call)
    after = copy.deepcopy(resource)
    if mask:
        wrong = [f"updateMask: {path} is no field" for path in mask if not _is_field(call, path)]
        for path in mask:
            _copy(body, after, path.split("."))
    else:
        wrong = []
        after = _merge(after, body) if call.verb == "PATCH" else after | body
    collection = call.id.rpartition(".")[0]
    for name in IMMUTABLE.get(collection, ()):
        if name in resource and after.get(name) != resource[name]:
            wrong.append(f"{name} is immutable: {resource[name]!r}, requested {after.get(name)!r}")
    return after, wrong


def _masked(call: Call) -> tuple[Json, list[str]]:
    """The resource in a request, and the fields of it that the request changes; no mask: all that it names."""
    asked = call.query.get("updateMask", [])
    body = call.body
    if isinstance(body.get("updateMask"), str):
        asked = [body["updateMask"]]
        (body,) = (inner for name, inner in body.items() if name != "updateMask")
    paths = [path for text in asked for path in text.split(",") if path]
    return body, [re.sub(r"_(\w)", lambda found: found[1].upper(), path) for path in paths]


def _is_field(call: Call, path: str) -> bool:
    """Of the message that the API answers with, or of any where it answers with an operation."""
    schemas = definitions.document(call.api)["schemas"]
    messages = schemas.values() if call.answers == "Operation" else [schemas[call.answers]]
    return any(path.partition(".")[0] in message.get("properties", {}) for message in messages)


def _copy(source: Json, target: Json, path: list[str]) -> None:
    """One masked field. A field that the mask names and the request lacks is cleared."""
    name, rest = path[0], path[1:]
    if rest and isinstance(source.get(name), dict):
        _copy(source[name], target.setdefault(name, {}), rest)
    elif name in source:
        target[name] = copy.deepcopy(source[name])
    else:
        target.pop(name, None)


def _merge(target: Json, patch: Json) -> Json:
    """RFC 7396."""
    merged = dict(target)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = _merge(merged[name], value)
        else:
            merged[name] = copy.deepcopy(value)
    return merged


def fill_pool(pool: Json) -> None:
    """What GKE writes into a new pool: its GPU taint, labels of its own, and how it upgrades."""
    config = pool.setdefault("config", {})
    stated = {taint["key"] for taint in config.get("taints", ())}
    if config.get("accelerators") and GPU_TAINT["key"] not in stated:
        config["taints"] = [*config.get("taints", []), GPU_TAINT]
    model = "spot" if config.get("spot") else "flex-start" if config.get("flexStart") else "on-demand"
    labels = {"goog-gke-node-pool-provisioning-model": model}
    config["resourceLabels"] = {**config.get("resourceLabels", {}), **labels}
    pool.setdefault("upgradeSettings", {"strategy": "SURGE", "maxSurge": 1})
