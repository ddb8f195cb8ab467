"""Changes of resources as Google's APIs make them, by mask or by merge, and fields they fill in."""

import copy
import re

from tests.plan.stand_in import definitions
from tests.plan.stand_in.definitions import Call, Json

GPU_TAINT = {
    "key": "nvidia.com/gpu",
    "value": "present",
    "effect": "NO_SCHEDULE",
}


def change(call: Call, resource: Json) -> tuple[Json, list[str]]:
    """The resource after an update, and what is wrong with it."""
    body, mask = _read_mask(call)
    after = copy.deepcopy(resource)
    if mask:
        wrong = [f"updateMask: {path} is no field" for path in mask if not _is_field(call, path)]
        for path in mask:
            _copy(body, after, path.split("."))
    else:
        wrong = []
        after = _merge(after, body) if call.verb == "PATCH" else after | body
    for name in definitions.list_immutable(call):
        if name in body and name in resource and after.get(name) != resource[name]:
            wrong.append(f"{name}: cannot be changed from {resource[name]!r}")
    return after, wrong


def _read_mask(call: Call) -> tuple[Json, list[str]]:
    """Return the resource in a request, and the fields that the request changes; without a mask,
    none.
    """
    mask = ",".join(call.query.get("updateMask", []))
    body = call.body
    if isinstance(body.get("updateMask"), str):
        mask = body["updateMask"]
        (body,) = (inner for name, inner in body.items() if name != "updateMask")
    camel_case = re.sub(r"_(\w)", lambda match: match[1].upper(), mask)
    return body, [path for path in camel_case.split(",") if path]


def _is_field(call: Call, path: str) -> bool:
    """Tell whether the answer's message has the field; any message, if the answer is an
    operation.
    """
    schemas = definitions.document(call.api)["schemas"]
    messages = schemas.values() if call.answers == "Operation" else [schemas[call.answers]]
    return any(path.partition(".")[0] in message.get("properties", {}) for message in messages)


def _copy(source: Json, target: Json, path: list[str]) -> None:
    """One masked field. A field that the mask names and the request lacks is cleared."""
    name = path[0]
    rest = path[1:]
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
    """Fill in what GKE derives from the other fields of a new pool: its GPU taint, its labels, and
    the second form of its disk.
    """
    config = pool["config"]
    config["bootDisk"] = {"diskType": config["diskType"], "sizeGb": str(config["diskSizeGb"])}
    keys = {taint["key"] for taint in config.get("taints", ())}
    if config.get("accelerators") and GPU_TAINT["key"] not in keys:
        config["taints"] = [*config.get("taints", []), GPU_TAINT]
    if config.get("spot"):
        model = "spot"
    else:
        model = "flex-start" if config.get("flexStart") else "on-demand"
    labels = {"goog-gke-node-pool-provisioning-model": model}
    config["resourceLabels"] = {**config.get("resourceLabels", {}), **labels}
