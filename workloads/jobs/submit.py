"""`submit FILE`: say what it buys, refuse over a cap, then apply it as it is.

Nothing is sent before the price has been shown and the caps have been met.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.contract.errors import InputError
from infra.contract.pools import LABEL_ACCELERATOR
from infra.environments import Environment
from infra.placement.prices import Table
from workloads.jobs import buying
from workloads.jobs.api import Api, Object
from workloads.jobs.buying import Forecast, Purchase
from workloads.jobs.view import View

SCHEMA = "holdfast.purchase/1"
KINDS = ("Job", "JobSet")


@dataclass(frozen=True, kw_only=True, slots=True)
class Caps:
    usd_per_hour: float | None = None
    usd: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("--max-usd-per-hour", self.usd_per_hour), ("--max-usd", self.usd)):
            if value is not None and not value > 0:
                raise InputError(name, got=value, allowed="more than 0", fix="leave it out for no cap")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
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


def read(path: Path) -> list[Object]:
    """The documents of a manifest; InputError where there is no job among them."""
    from ruamel.yaml import YAML, YAMLError

    try:
        text = path.read_text()
        documents = [doc for doc in YAML(typ="safe", pure=True).load_all(text) if isinstance(doc, dict)]
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        what = "manifest cannot be read"
        raise InputError(what, got=f"{path}: {error}", allowed="a YAML file", fix="give a rendered file") from error
    if not any(doc.get("kind") in KINDS for doc in documents):
        kinds = ", ".join(str(doc.get("kind")) for doc in documents) or "nothing"
        fix = "`python -m workloads render` writes manifests with jobs"
        raise InputError("no job in the manifest", got=f"{path}: {kinds}", allowed=" or ".join(KINDS), fix=fix)
    return documents


def plan(documents: list[Object], env: Environment, prices: Table, caps: Caps, hours: float | None) -> Plan:
    views = [View(body=doc, pods=[]) for doc in documents if doc["kind"] in KINDS]
    purchases = [buying.purchase(v.body, v.size, v.pod_spec, env, prices) for v in views]
    accelerator = views[0].pod_spec.get("nodeSelector", {}).get(LABEL_ACCELERATOR, "")
    forecasts = buying.forecasts(purchases[0], hours, accelerator, env) if hours and accelerator else []
    made = Plan(
        documents=documents,
        purchases=purchases,
        forecasts=forecasts,
        price_date=prices.fetched_at.isoformat(),
        refusals=[],
    )
    made.refusals.extend(_refusals(made, caps))
    return made


def _refusals(made: Plan, caps: Caps) -> list[str]:
    found: list[str] = []
    nowhere = [bought.job for bought in made.purchases if not bought.pools]
    if caps == Caps():
        return found
    if made.usd_per_hour is None:
        why = f" ({', '.join(nowhere)} fits no pool of the environment)" if nowhere else ""
        return [f"a cap was given and the price is not known{why}"]
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
    """`kind/name` of each object, in the manifest's order; the cluster's refusal stops the rest."""
    for document in documents:
        api.apply(api.path_of(document), document)
    return [f"{document['kind']}/{document['metadata']['name']}" for document in documents]
