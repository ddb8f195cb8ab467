"""Reads the Cloud Billing Catalog into a price table.

SKUs are classified by their text. Why: infra/decisions/0051.
"""

import datetime
import http.client
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
from holdfast.cost.prices import CORE, GPU, INFERRED, RAM, Sku, SkuKey, Table, check
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.environment import ENV_TOKEN
from holdfast.vocabulary.machines import ACCELERATORS

# A token travels in a header, never in an address, so that no error message and no log can show it.
TIMEOUT_S = 60
ENDPOINT = "https://cloudbilling.googleapis.com"
COMPUTE_ENGINE = "services/6F81-5844-456A"
PAGE_SIZE = 5000

# Texts of other products with other prices, several of them 0.00.
_NOT_OURS = re.compile(
    r"Reserved|Commitment|Calendar Mode|Sole Tenancy|Custom|Premium|Workstation|\b(Mega|Plus)\b"
)
_CAPACITY = (
    (re.compile(r"Spot Preemptible"), Capacity.SPOT),
    (re.compile(r"DWS Defined Duration"), Capacity.FLEX_START),
    (re.compile(r"Preemptible"), None),  # an older product, whose VMs end after 24 h
)
_HOST = re.compile(
    r"^(?:Spot Preemptible |DWS Defined Duration )?(G2|G4|A2|A3|N1)(?: Predefined)?(?: Instance)?"
    r" (Core|Ram) running in "
)
# Newer GPUs lack "Nvidia"; B200 comes in slices of a whole machine, with "Spot Preemptible" before
# it.
_GPU = re.compile(
    r"^(?:Spot Preemptible |DWS Defined Duration )?(?:A4 )?(?:Nvidia )?(?:Tesla )?"
    r"(?:(L4|T4|A100|A100 80GB|H100 80GB|H200 141GB) GPU|(B200) \(1 gpu slice\)|(RTX 6000 96GB))"
    r" (?:attached to .* )?running in "
)
_ACCELERATOR = {
    "L4": "nvidia-l4",
    "A100": "nvidia-tesla-a100",
    "A100 80GB": "nvidia-a100-80gb",
    "H100 80GB": "nvidia-h100-80gb",
    "H200 141GB": "nvidia-h200-141gb",
    "B200": "nvidia-b200",
    "RTX 6000 96GB": "nvidia-rtx-pro-6000",
    "T4": "nvidia-tesla-t4",
}
_UNITS = {
    CORE: "h",
    RAM: "GiBy.h",
    GPU: "h",
}


def classify(description: str) -> tuple[str, str, Capacity] | None:
    """Returns (part, family or accelerator, capacity); None for SKUs that are not needed."""
    if _NOT_OURS.search(description):
        return None
    capacity = _find_capacity(description)
    if capacity is None:
        return None
    host = _HOST.match(description)
    if host:
        part = CORE if host.group(2) == "Core" else RAM
        return part, host.group(1).lower(), capacity
    gpu = _GPU.match(description)
    if gpu:
        name = gpu.group(1) or gpu.group(2) or gpu.group(3)
        return GPU, _ACCELERATOR[name], capacity
    return None


def _find_capacity(description: str) -> Capacity | None:
    for pattern, capacity in _CAPACITY:
        if pattern.search(description):
            return capacity
    return Capacity.ON_DEMAND


def refresh(old: Table, today: datetime.date, endpoint: str = ENDPOINT) -> Table:
    """Returns a table of today's prices.

    Prices that the catalog does not list stay inferred; notes are kept. Raises Unjudged if the
    catalog has no known machine, InputError if its prices contradict each other.
    """
    listed: list[Sku] = []
    for sku in merge(_select_skus(fetch(endpoint))):
        listed.append(replace(sku, as_of=today.isoformat()))
    if not listed:
        raise Unjudged(
            f"{endpoint} returned no SKU of a known GPU machine; the catalog's wording may have"
            " changed"
        )
    inferred = _infer_prices(old, listed)
    inferred_sources = [source for source in old.sources if source.startswith("inferred")]
    table = Table(
        fetched_at=today,
        sources=(f"Cloud Billing Catalog of {today}", *inferred_sources),
        notes=old.notes,
        skus=tuple(sorted((*listed, *inferred), key=_sort_key)),
    )
    check(table)
    return table


def _sort_key(sku: Sku) -> tuple[str, str, Capacity, tuple[str, ...]]:
    return sku.part, sku.of, sku.capacity, sku.regions


def _infer_prices(old: Table, listed: list[Sku]) -> Iterator[Sku]:
    """Yields the old guesses for parts that the catalog does not list in a region.

    The catalog must list the machine's other parts there. On-demand prices fall, and flex-start
    never costs more, so no guess stays above today's on-demand price.
    """
    usd_by_key: dict[SkuKey, float] = {}
    sold: set[tuple[str, str]] = set()
    for sku in listed:
        for region in sku.regions:
            usd_by_key[sku.part, sku.of, sku.capacity, region] = sku.usd
            sold.add((sku.of, region))
    for guess in old.skus:
        if guess.basis != INFERRED:
            continue
        for region in guess.regions:
            key = (guess.part, guess.of, guess.capacity, region)
            if (guess.of, region) not in sold or key in usd_by_key:
                continue
            on_demand_key = (guess.part, guess.of, Capacity.ON_DEMAND, region)
            on_demand_usd = usd_by_key.get(on_demand_key, guess.usd)
            yield replace(guess, regions=(region,), usd=min(guess.usd, on_demand_usd))


def fetch(endpoint: str) -> Iterator[Mapping[str, Any]]:
    """Yields every SKU of Compute Engine, about 32,000 in seven pages."""
    headers = credentials()
    query: dict[str, object] = {"pageSize": PAGE_SIZE, "currencyCode": "USD"}
    while True:
        page = get(f"{endpoint}/v1/{COMPUTE_ENGINE}/skus?{urlencode(query)}", headers)
        yield from page.get("skus", ())
        # The last page carries an empty token, not none.
        token = page.get("nextPageToken")
        if not token:
            return
        query["pageToken"] = token


def merge(skus: Iterable[Sku]) -> list[Sku]:
    """Returns one SKU for each part, capacity and region.

    Raises InputError if one of them has two different prices.
    """
    sku_by_key: dict[SkuKey, Sku] = {}
    merged: list[Sku] = []
    for sku in skus:
        keys: list[SkuKey] = []
        for region in sku.regions:
            keys.append((sku.part, sku.of, sku.capacity, region))
        duplicates = [sku_by_key[key] for key in keys if key in sku_by_key]
        if not duplicates:
            merged.append(sku)
            sku_by_key.update(dict.fromkeys(keys, sku))
        elif duplicates[0].usd != sku.usd:
            raise _report_two_prices(duplicates[0], sku)
    return merged


def _report_two_prices(first: Sku, second: Sku) -> InputError:
    return InputError(
        f"two prices of {second.of} {second.part} on {second.capacity.value}",
        got=(f"{first.description!r} at {first.usd} and {second.description!r} at {second.usd}"),
        allowed="one",
        fix=("teach holdfast/cost/billing_catalog.py which of the two texts is another product"),
    )


def _select_skus(rows: Iterable[Mapping[str, Any]]) -> Iterator[Sku]:
    """Yields the SKUs of known machines in regions that have them."""
    known_regions = _list_regions()
    for row in rows:
        kind = classify(row.get("description", ""))
        regions = [region for region in row.get("serviceRegions", ()) if region in known_regions]
        if not (kind and regions):
            continue
        part, name, capacity = kind
        yield Sku(
            part=part,
            of=name,
            capacity=capacity,
            regions=tuple(regions),
            usd=_usd(row, _UNITS[part]),
            sku=row["skuId"],
            description=row["description"],
        )


def _list_regions() -> set[str]:
    """Returns the regions that have some accelerator."""
    regions: set[str] = set()
    for accelerator in ACCELERATORS.values():
        for zone in accelerator.zones:
            regions.add(zone.rpartition("-")[0])
    return regions


def _usd(sku: Mapping[str, Any], unit: str) -> float:
    """Returns the newest price of the last tier; earlier tiers are free allowances.

    Raises InputError if the catalog changed the unit.
    """
    # The list is ordered by effective time, so the last price is current.
    expression = sku["pricingInfo"][-1]["pricingExpression"]
    if expression["usageUnit"] != unit:
        raise InputError(
            f"SKU {sku['skuId']} {sku['description']}",
            got=f"unit {expression['usageUnit']}",
            allowed=unit,
            fix=("the catalog changed its unit; convert it in holdfast/cost/billing_catalog.py"),
        )
    price = expression["tieredRates"][-1]["unitPrice"]
    units = int(price.get("units", 0))
    nanos = int(price.get("nanos", 0))
    return round(units + nanos / 1e9, 9)


def credentials() -> dict[str, str]:
    """Returns the authorization header, with a token of the environment or of gcloud.

    Raises Unjudged without any.
    """
    token = os.environ.get(ENV_TOKEN, "").strip()
    if not token:
        try:
            # Client libraries refuse the credentials of `gcloud auth login`.
            token = gcloud(("auth", "application-default", "print-access-token")).strip()
        except Unjudged as error:
            raise Unjudged(f"no Google credentials; set {ENV_TOKEN}: {error}") from error
    return {"Authorization": f"Bearer {token}"}


def get(url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Raises Unjudged if Google does not answer with JSON."""
    # The query may carry a page token; messages show the address without it.
    address = url.split("?")[0]
    request = urllib.request.Request(url, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            text = response.read()
    except urllib.error.HTTPError as error:
        # The body is not shown, because it may repeat the request.
        error.close()
        raise Unjudged(f"{address} answered {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise Unjudged(f"{address}: {getattr(error, 'reason', error)}") from error
    except ValueError:  # its text may have the token
        raise Unjudged(f"the address {address} or the token has another form") from None
    try:
        return json.loads(text)
    except ValueError as error:
        raise Unjudged(f"{address}: {error}") from error
