"""A stand-in for `advice.capacity` of Compute Engine, by the form of its discovery document.

It refuses fields that the document does not have, and answers what a test says of a machine type
and a provisioning model.
"""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from workloads.library.tests.http_server import answering

# Fields of CapacityAdviceRequest; a leaf is the type of its value, None allows any name.
FORM: dict[str, Any] = {
    "instanceProperties": {"scheduling": {"provisioningModel": str, "maxRunDuration": str}},
    "instanceFlexibilityPolicy": {
        "instanceSelections": {None: {"machineTypes": list, "guestAccelerators": list}}
    },
    "size": int,
    "distributionPolicy": {"targetShape": str, "zones": list},
}
MODELS = ("SPOT", "FLEX_START")
SHAPES = ("ANY", "ANY_SINGLE_ZONE", "BALANCED")


@dataclass
class Advisor:
    scores: dict[tuple[str, str], tuple[float, str]]
    """Machine type and provisioning model -> obtainability and estimated uptime."""
    requests: list[tuple[str, Any]] = field(default_factory=list)

    def answer(self, path: str, headers: Mapping[str, str], data: bytes) -> tuple[int, object]:
        if not str(headers.get("Authorization", "")).startswith("Bearer "):
            return 401, {"error": {"code": 401}}
        body = json.loads(data)
        self.requests.append((path, body))
        problem = find_problem(body, FORM)
        model = body["instanceProperties"]["scheduling"]["provisioningModel"]
        if problem or model not in MODELS:
            return 400, {"error": {"code": 400, "message": problem or model}}
        duration = body["instanceProperties"]["scheduling"].get("maxRunDuration", "")
        if model == "FLEX_START" and not duration.endswith("s"):
            return 400, {"error": {"code": 400, "message": "maxRunDuration"}}
        if body["distributionPolicy"]["targetShape"] not in SHAPES or not 1 <= body["size"] <= 1000:
            return 400, {"error": {"code": 400, "message": "shape or size"}}
        [selection] = body["instanceFlexibilityPolicy"]["instanceSelections"].values()
        [zone, *_] = body["distributionPolicy"]["zones"]
        recommendations: list[Any] = []
        for machine in selection["machineTypes"]:
            if (machine, model) in self.scores:
                obtainability, uptime = self.scores[machine, model]
                recommendations.append(
                    {
                        "scores": {"obtainability": obtainability, "estimatedUptime": uptime},
                        "shards": [
                            {
                                "instanceCount": body["size"],
                                "machineType": machine,
                                "provisioningModel": model,
                                "zone": zone["zone"],
                            }
                        ],
                    }
                )
        return 200, {"recommendations": recommendations}


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
