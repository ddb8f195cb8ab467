"""Reads the Cloud Billing Catalog into a price table. SKUs are classified by their text. Why:
infra/decisions/0051.
"""

import datetime
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from holdfast.clients.gcloud import run as gcloud
from holdfast.cost.prices import CORE, GPU, INFERRED, RAM, Sku, Table, check
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.machines import ACCELERATORS

# A token travels in a header, never in an address, so that no error message and no log can show it.
ENV_TOKEN = "HOLDFAST_GOOGLE_TOKEN"
TIMEOUT_S = 60
ENDPOINT = "https://cloudbilling.googleapis.com"
COMPUTE_ENGINE = "services/6F81-5844-456A"
PAGE_SIZE = 5000

# Other products at other prices, several of them at 0.00.
_NOT_OURS = re.compile(
    r"Reserved|Commitment|Calendar Mode|Sole Tenancy|Custom|Premium|Workstation|\b(Mega|Plus)\b"
)
_CAPACITY = (
    (re.compile(r"Spot Preemptible"), Capacity.SPOT),
    (re.compile(r"DWS Defined Duration"), Capacity.FLEX_START),
    (re.compile(r"Preemptible"), None),  # the older product, which ended after 24 h
)
_HOST = re.compile(
    r"^(?:Spot Preemptible |DWS Defined Duration )?(G2|A2|A3)(?: Instance)? (Core|Ram) running in "
)
# Newer GPUs come without "Nvidia"; B200 in slices of a whole machine, with "Spot Preemptible"
# before it.
_GPU = re.compile(
    r"^(?:Spot Preemptible |DWS Defined Duration )?(?:A4 )?(?:Nvidia )?(?:Tesla )?"
    r"(?:(L4|A100|A100 80GB|H100 80GB|H200 141GB) GPU|(B200) \(1 gpu slice\)) (?:attached to .*"
    r" )?running in "
)
_ACCELERATOR = {
    "L4": "nvidia-l4",
    "A100": "nvidia-tesla-a100",
    "A100 80GB": "nvidia-a100-80gb",
    "H100 80GB": "nvidia-h100-80gb",
    "H200 141GB": "nvidia-h200-141gb",
    "B200": "nvidia-b200",
}
_UNITS = {
    CORE: "h",
    RAM: "GiBy.h",
    GPU: "h",
}


def classify(description: str) -> tuple[str, str, Capacity] | None:
    """(part, of what, capacity), or None for other SKUs."""
    if _NOT_OURS.search(description):
        return None
    capacity = next(
        (c for pattern, c in _CAPACITY if pattern.search(description)), Capacity.ON_DEMAND
    )
    if capacity is None:
        return None
    host = _HOST.match(description)
    if host:
        return {"Core": CORE, "Ram": RAM}[host.group(2)], host.group(1).lower(), capacity
    gpu = _GPU.match(description)
    if gpu:
        return GPU, _ACCELERATOR[gpu.group(1) or gpu.group(2)], capacity
    return None


def refresh(old: Table, today: datetime.date, endpoint: str = ENDPOINT) -> Table:
    """A table of today's prices. What the catalogue does not sell stays inferred; notes are kept."""
    listed = [replace(sku, as_of=today.isoformat()) for sku in merge(_listed(fetch(endpoint)))]
    if not listed:
        raise Unjudged(
            f"{endpoint} returned no SKU of a known GPU machine; the catalogue's wording may have"
            " changed"
        )
    kept = _still_inferred(old, listed)
    table = Table(
        fetched_at=today,
        sources=(
            f"Cloud Billing Catalog of {today}",
            *(s for s in old.sources if s.startswith("inferred")),
        ),
        notes=old.notes,
        skus=tuple(sorted((*listed, *kept), key=lambda s: (s.part, s.of, s.capacity, s.regions))),
    )
    check(table)
    return table


def _still_inferred(old: Table, listed: list[Sku]) -> Iterator[Sku]:
    """Guesses for what the catalogue does not sell where it sells the rest; never above today's
    on-demand price.
    """
    known = {(s.part, s.of, s.capacity, region): s.usd for s in listed for region in s.regions}
    sold = {(of, region) for _, of, _, region in known}
    for guess in (s for s in old.skus if s.basis == INFERRED):
        for region in guess.regions:
            if (guess.of, region) in sold and (
                guess.part,
                guess.of,
                guess.capacity,
                region,
            ) not in known:
                # On-demand prices fall; flex-start never costs more than they do.
                demand = known.get((guess.part, guess.of, Capacity.ON_DEMAND, region), guess.usd)
                yield replace(guess, regions=(region,), usd=min(guess.usd, demand))


def fetch(endpoint: str) -> Iterator[Mapping[str, Any]]:
    """Every SKU of Compute Engine, about 32,000 in seven pages."""
    headers = credentials()
    query: dict[str, object] = {"pageSize": PAGE_SIZE, "currencyCode": "USD"}
    while True:
        page = get(f"{endpoint}/v1/{COMPUTE_ENGINE}/skus?{urlencode(query)}", headers)
        yield from page.get("skus", ())
        # The last page carries an empty token, not none.
        if not page.get("nextPageToken"):
            return
        query["pageToken"] = page["nextPageToken"]


def merge(skus: Iterable[Sku]) -> list[Sku]:
    """One SKU for each part, capacity and region; two different prices for one are refused, not
    chosen from.
    """
    seen: dict[tuple[str, str, Capacity, str], Sku] = {}
    kept: list[Sku] = []
    for sku in skus:
        clash = next(
            (s for r in sku.regions if (s := seen.get((sku.part, sku.of, sku.capacity, r)))), None
        )
        if clash is not None and clash.usd != sku.usd:
            raise InputError(
                f"two prices of {sku.of} {sku.part} on {sku.capacity.value}",
                got=f"{clash.description!r} at {clash.usd} and {sku.description!r} at {sku.usd}",
                allowed="one",
                fix=(
                    "teach workloads/library/holdfast/cost/billing_catalog.py which of the two texts is"
                    " another product"
                ),
            )
        if clash is None:
            kept.append(sku)
            seen.update({(sku.part, sku.of, sku.capacity, r): sku for r in sku.regions})
    return kept


def _listed(raw: Iterable[Mapping[str, Any]]) -> Iterator[Sku]:
    regions = frozenset(zone.rpartition("-")[0] for a in ACCELERATORS.values() for zone in a.zones)
    for sku in raw:
        kind = classify(sku.get("description", ""))
        where = tuple(r for r in sku.get("serviceRegions", ()) if r in regions)
        if kind and where:
            part, of, capacity = kind
            yield Sku(
                part=part,
                of=of,
                capacity=capacity,
                regions=where,
                usd=_usd(sku, _UNITS[part]),
                sku=sku["skuId"],
                description=sku["description"],
            )


def _usd(sku: Mapping[str, Any], unit: str) -> float:
    """Newest price of the last tier; earlier tiers are free allowances."""
    # The list is ordered by effective time; the last one holds now.
    expression = sku["pricingInfo"][-1]["pricingExpression"]
    if expression["usageUnit"] != unit:
        raise InputError(
            f"SKU {sku['skuId']} {sku['description']}",
            got=f"unit {expression['usageUnit']}",
            allowed=unit,
            fix=(
                "the catalogue changed its unit; convert it in"
                " workloads/library/holdfast/cost/billing_catalog.py"
            ),
        )
    price = expression["tieredRates"][-1]["unitPrice"]
    return round(int(price.get("units", 0)) + int(price.get("nanos", 0)) / 1e9, 9)


def credentials() -> dict[str, str]:
    """The header that proves who asks, by a token of the environment or of gcloud. Unjudged without
    any.
    """
    try:
        # Application default credentials: those of `gcloud auth login` are refused by client
        # libraries.
        token = (
            os.environ.get(ENV_TOKEN)
            or gcloud(("auth", "application-default", "print-access-token")).strip()
        )
    except Unjudged as error:
        raise Unjudged(f"no Google credentials; set {ENV_TOKEN}: {error}") from error
    return {"Authorization": f"Bearer {token}"}


def get(url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Unjudged when Google does not answer with JSON."""
    # The query may carry a page token; messages show the address without it.
    address = url.split("?")[0]
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=dict(headers)), timeout=TIMEOUT_S
        ) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        # The body of an error may repeat what was sent.
        error.close()
        raise Unjudged(f"{address} answered {error.code} {error.reason}") from error
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        raise Unjudged(f"{address}: {getattr(error, 'reason', error)}") from error
