"""A stand-in for `advice.capacity` of Compute Engine, by the form of its discovery document.

It refuses fields that the document does not have, and answers with what a test sets for a machine
type and a provisioning model.
"""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from workloads.library.tests.http_server import answering

# Fields of CapacityAdviceRequest; a leaf is the type of its value, None allows any name.
SCHEDULING: dict[str, Any] = {
    "provisioningModel": str,
    "maxRunDuration": str,
}
SELECTION: dict[str, Any] = {
    "machineTypes": list,
    "guestAccelerators": list,
}
DISTRIBUTION: dict[str, Any] = {
    "targetShape": str,
    "zones": list,
}
FORM: dict[str, Any] = {
    "instanceProperties": {"scheduling": SCHEDULING},
    "instanceFlexibilityPolicy": {"instanceSelections": {None: SELECTION}},
    "size": int,
    "distributionPolicy": DISTRIBUTION,
}
MODELS = ("SPOT", "FLEX_START")
SHAPES = ("ANY", "ANY_SINGLE_ZONE", "BALANCED")


@dataclass
class Advisor:
    scores: dict[tuple[str, str], tuple[float, str]]
    """Machine type and provisioning model -> obtainability and estimated uptime."""
    requests: list[tuple[str, Any]] = field(default_factory=list)
    status: int = 200
    """Its answer to a request without a problem; 403 refuses all."""

    def answer(self, path: str, headers: Mapping[str, str], data: bytes) -> tuple[int, object]:
        authorization = str(headers.get("Authorization", ""))
        if not authorization.startswith("Bearer "):
            return 401, {"error": {"code": 401}}
        body = json.loads(data)
        self.requests.append((path, body))
        problem = find_problem(body, FORM) or find_bad_value(body)
        if problem:
            return 400, {"error": {"code": 400, "message": problem}}
        if self.status != 200:
            return self.status, {"error": {"code": self.status}}
        model = body["instanceProperties"]["scheduling"]["provisioningModel"]
        [selection] = body["instanceFlexibilityPolicy"]["instanceSelections"].values()
        [zone, *_] = body["distributionPolicy"]["zones"]
        recommendations: list[Any] = []
        for machine in selection["machineTypes"]:
            if (machine, model) not in self.scores:
                continue
            obtainability, uptime = self.scores[machine, model]
            scores = {
                "obtainability": obtainability,
                "estimatedUptime": uptime,
            }
            shard = {
                "instanceCount": body["size"],
                "machineType": machine,
                "provisioningModel": model,
                "zone": zone["zone"],
            }
            recommendation = {
                "scores": scores,
                "shards": [shard],
            }
            recommendations.append(recommendation)
        return 200, {"recommendations": recommendations}


def find_bad_value(body: Any) -> str:
    """Return the field whose value the API refuses."""
    scheduling = body["instanceProperties"]["scheduling"]
    model = scheduling["provisioningModel"]
    if model not in MODELS:
        return model
    duration = scheduling.get("maxRunDuration", "")
    if model == "FLEX_START" and not duration.endswith("s"):
        return "maxRunDuration"
    shape = body["distributionPolicy"]["targetShape"]
    if shape not in SHAPES or not 1 <= body["size"] <= 1000:
        return "shape or size"
    return ""


def find_problem(body: object, form: Any) -> str:
    """Return a field that the form does not have, or that has another type."""
    if not isinstance(form, dict):
        return "" if isinstance(body, form) else f"{body!r} is no {form.__name__}"
    if not isinstance(body, dict):
        return f"{body!r} is no object"
    for name, value in body.items():
        if name not in form and None not in form:
            return f"unknown field {name}"
        problem = find_problem(value, form.get(name, form.get(None)))
        if problem:
            return problem
    return ""


@contextmanager
def advising(advisor: Advisor) -> Generator[str]:
    """Yields the address of the API."""
    with answering(advisor.answer) as address:
        yield address
