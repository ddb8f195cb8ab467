"""Asks Google how obtainable machines are now: Compute Engine's `advice.capacity`, a beta.

The answer is a likelihood from 0 to 1, and for Spot how long most machines are expected to run. It
ignores quota, and says nothing of TPUs. Guarantee: whatever goes wrong is one line, never a failure
of the command that asks.
"""

# Why it is so: infra/decisions/0149.

import http.client
import json
import math
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.clients import gcloud
from holdfast.support.errors import Unjudged
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.environment import ENV_CAPACITY_ADVICE, ENV_TOKEN
from holdfast.vocabulary.lifecycle import FLEX_MAX_RUN_S

ADDRESS = "https://compute.googleapis.com/compute/beta"
ZONES = "https://www.googleapis.com/compute/v1/projects/{}/zones"
OFF = "off"
ANY = "ANY"
TIMEOUT_S = 10.0
MAX_BYTES = 1 << 20
MAX_SIZE = 1_000
MODELS = {Capacity.SPOT: "SPOT", Capacity.FLEX_START: "FLEX_START"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Machines that are wanted at the same time."""

    project: str
    region: str
    zones: Sequence[str]
    machine_types: Sequence[str]
    """Any of them will do."""
    size: int
    capacity: Capacity
    """Spot or flex-start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    obtainability: float
    uptime_s: float | None
    """Expected life of most Spot machines; None if Google does not say."""
    zones: tuple[str, ...]
    """The zones in which Google would place the machines."""

    def text(self) -> str:
        """Return `0.9, 1 h`."""
        uptime = f", {_short(self.uptime_s)}" if self.uptime_s is not None else ""
        return f"{self.obtainability:.1f}{uptime}"


def _short(seconds: float) -> str:
    if seconds >= 3_600:
        return f"{seconds / 3_600:.0f} h"
    return f"{seconds / 60:.0f} min"


Ask = Callable[[Request], Advice]
"""Raises Unjudged if there is no answer."""


def _find_gcloud_token() -> str:
    return gcloud.run(("auth", "print-access-token")).strip()


def ask(request: Request, find_token: Callable[[], str] = _find_gcloud_token) -> Advice:
    """Ask with the token of the environment, else of `find_token`.

    Raises Unjudged without an answer.
    """
    address = os.environ.get(ENV_CAPACITY_ADVICE) or ADDRESS
    if address == OFF:
        raise Unjudged(f"not asked: {ENV_CAPACITY_ADVICE}={OFF}")
    return post(request, address, os.environ.get(ENV_TOKEN) or find_token())


def post(request: Request, address: str, token: str) -> Advice:
    """Send a request with a token. Raises Unjudged without an answer that can be used."""
    if request.capacity not in MODELS or not 1 <= request.size <= MAX_SIZE:
        raise Unjudged(f"no advice for {request.size} machines {request.capacity.value}")
    url = f"{address}/projects/{request.project}/regions/{request.region}/advice/capacity"
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
    }
    data = json.dumps(make_body(request)).encode()
    try:
        http_request = urllib.request.Request(url, data, headers, method="POST")
        with urllib.request.urlopen(http_request, timeout=TIMEOUT_S) as response:
            answer = response.read(MAX_BYTES)
    except urllib.error.HTTPError as error:
        error.close()
        hint = "; it needs roles/compute.viewer" if error.code in (401, 403) else ""
        raise Unjudged(f"Google answered {error.code} {error.reason}{hint}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", error)).strip()
        raise Unjudged(f"Google did not answer: {reason}") from error
    except ValueError:  # its text may have the token
        raise Unjudged(f"the address {address} or the token has another form") from None
    try:
        return parse_answer(json.loads(answer))
    except ValueError as error:
        raise Unjudged("Google answered in another form") from error


def make_body(request: Request) -> dict[str, Any]:
    """Return the request in the form of the API. Flex-start needs the time for which it runs."""
    folder = ZONES.format(request.project)
    zones = [{"zone": f"{folder}/{zone}"} for zone in request.zones]
    selection = {"machineTypes": list(request.machine_types)}
    scheduling = {"provisioningModel": MODELS[request.capacity]}
    if request.capacity is Capacity.FLEX_START:
        scheduling["maxRunDuration"] = f"{FLEX_MAX_RUN_S}s"
    return {
        "instanceProperties": {"scheduling": scheduling},
        "instanceFlexibilityPolicy": {"instanceSelections": {"machines": selection}},
        "size": request.size,
        "distributionPolicy": {"targetShape": ANY, "zones": zones},
    }


def parse_answer(body: Any) -> Advice:
    """Parse the best recommendation. Raises ValueError if there is none of the known form."""
    answers: list[Advice] = []
    try:
        for recommendation in body["recommendations"]:
            answers.append(_parse_recommendation(recommendation))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if not answers:
        raise ValueError("no recommendation")
    return max(answers, key=lambda advice: advice.obtainability)


def _parse_recommendation(body: dict[str, Any]) -> Advice:
    scores = body["scores"]
    obtainability = float(scores["obtainability"])
    if not 0 <= obtainability <= 1:
        raise ValueError(f"obtainability {obtainability}")
    zones: set[str] = set()
    for shard in body.get("shards") or ():
        url = str(shard.get("zone", ""))
        zones.add(url.rpartition("/")[2])
    return Advice(
        obtainability=obtainability,
        uptime_s=_parse_seconds(scores.get("estimatedUptime")),
        zones=tuple(sorted(zones - {""})),
    )


def _parse_seconds(text: object) -> float | None:
    """Return the seconds of a duration in JSON, `600s`; None for anything else."""
    digits = str(text or "").removesuffix("s")
    try:
        seconds = float(digits)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
