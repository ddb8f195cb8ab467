"""`submit FILE`: say what it buys, refuse over a cap, then apply it as it is.

Nothing is sent before the price has been shown and the caps have been met.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.clients.api import Api, ApiError, Object
from holdfast.contract.errors import InputError, Unjudged
from holdfast.contract.pools import LABEL_ACCELERATOR
from holdfast.jobs import buying
from holdfast.jobs.buying import Forecast, Purchase
from holdfast.jobs.job_snapshot import JobSnapshot
from holdfast.jobs.manifest import KINDS
from holdfast.place.prices import Table
from holdfast.platform import Platform

SCHEMA = "holdfast.purchase/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Caps:
    usd_per_hour: float | None = None
    usd: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("--max-usd-per-hour", self.usd_per_hour), ("--max-usd", self.usd)):
            if value is not None and not 0 < value < math.inf:
                raise InputError(name, got=value, allowed="more than 0", fix="leave it out for no cap")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    environment: str
    documents: list[Object]
    purchases: list[Purchase]
    forecasts: list[Forecast]
    """Of the first job, where --hours was given."""
    price_date: str
    refusals: list[str]
    """Empty: within the caps."""

    @property
    def usd_per_hour(self) -> float | None:
        rates = [bought.usd_per_hour for bought in self.purchases]
        return None if None in rates else sum(rate for rate in rates if rate is not None)

    def as_json(self) -> dict[str, Any]:
        rows = {"purchases": self.purchases, "forecasts": self.forecasts}
        head = {"schema": SCHEMA, "usd_per_hour": self.usd_per_hour, "price_date": self.price_date}
        return head | {"refusals": self.refusals} | {key: [asdict(row) for row in found] for key, found in rows.items()}


def plan(documents: list[Object], platform: Platform, prices: Table, caps: Caps, hours: float | None) -> Plan:
    if hours is not None and not 0 < hours < math.inf:
        raise InputError("--hours", got=hours, allowed="more than 0", fix="give the hours of undisturbed work")
    jobs = [JobSnapshot(body=doc, pods=[]) for doc in documents if doc["kind"] in KINDS]
    purchases = [buying.purchase(v.body, _most(v, documents), v.pod_spec, platform, prices) for v in jobs]
    accelerator = jobs[0].pod_spec.get("nodeSelector", {}).get(LABEL_ACCELERATOR, "")
    forecasts = buying.forecasts(purchases[0], hours, accelerator, platform) if hours and accelerator else []
    made = Plan(
        environment=platform.name,
        documents=documents,
        purchases=purchases,
        forecasts=forecasts,
        price_date=prices.fetched_at.isoformat(),
        refusals=[],
    )
    made.refusals.extend(_refusals(made, caps))
    return made


def _most(job: JobSnapshot, documents: list[Object]) -> int:
    """Pods that may run at once: as many as an autoscaler beside it may add."""
    scalers = (doc["spec"] for doc in documents if doc["kind"] == "HorizontalPodAutoscaler")
    return next((int(s["maxReplicas"]) for s in scalers if s["scaleTargetRef"]["name"] == job.name), job.size)


def _refusals(made: Plan, caps: Caps) -> list[str]:
    found: list[str] = []
    if caps == Caps():
        return found
    unknown = [
        f"{bought.job} {'has no price' if bought.pools else 'fits no pool of the environment'}"
        for bought in made.purchases
        if bought.usd_per_hour is None
    ]
    if unknown:
        return [f"a cap was given and the price is not known ({', '.join(unknown)})"]
    assert made.usd_per_hour is not None
    if caps.usd_per_hour is not None and made.usd_per_hour > caps.usd_per_hour:
        found.append(f"${made.usd_per_hour:.2f} an hour is over the cap of ${caps.usd_per_hour:.2f}")
    if caps.usd is not None:
        chosen = next((f for f in made.forecasts if f.placement.value == made.purchases[0].capacity.value), None)
        if chosen is None or chosen.refused:
            found.append("--max-usd needs --hours and a forecast of this capacity")
        elif chosen.usd_p95 > caps.usd:
            found.append(f"${chosen.usd_p95:.2f} (p95) in all is over the cap of ${caps.usd:.2f}")
    return found


def apply(api: Api, documents: list[Object]) -> list[str]:
    """`kind/name` of each object, in the manifest's order. The cluster judges all of them before it takes one."""
    made = {doc["metadata"]["name"] for doc in documents if doc["kind"] == "Namespace"}
    for trial in ({"dryRun": "All"}, {}):
        for document in documents:
            if not (trial and document["metadata"].get("namespace") in made):  # there is no such place yet
                _send(api, document, trial)
    return [_named(document) for document in documents]


def _send(api: Api, document: Object, trial: dict[str, str]) -> None:
    try:
        api.apply(api.path_of(document), document, **trial)
    except ApiError as error:
        if error.status in (401, 403):
            raise Unjudged(f"no right to start {_named(document)}: {error}") from error
        fix = "install what the platform's manifests need, or correct the manifest"
        sent = "nothing was sent" if trial else "what stands before it in the manifest was sent"
        what = f"the cluster refuses {_named(document)}; {sent}"
        raise InputError(what, got=error, allowed="what its API server accepts", fix=fix) from error


def _named(document: Object) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"
