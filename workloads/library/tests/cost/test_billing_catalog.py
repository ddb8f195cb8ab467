import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from holdfast.cost import billing_catalog, prices
from holdfast.cost.prices import CORE, GPU, INFERRED, LISTED, RAM
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.machines import MACHINE_TYPES
from workloads.library.tests.http_server import answering

SPOT = Capacity.SPOT
FLEX = Capacity.FLEX_START
DEMAND = Capacity.ON_DEMAND
TODAY = datetime.date(2026, 11, 21)


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(billing_catalog.ENV_TOKEN, "not-a-secret")


OTHERS = (
    "Nvidia H100 80GB Plus GPU running in Americas",
    "Nvidia H100 80GB Mega GPU attached to Spot Preemptible VMs running in Tokyo",
    "Nvidia H100 Mega 80GB GPU attached to DWS Defined Duration VMs running in Americas",
    "Nvidia L4 GPU Virtual Workstation running in Americas",
    "Reserved Nvidia Tesla A100 GPU in Seoul",
    "Reserved Nvidia H100 80GB Mega GPU in Americas in Calendar Mode",
    "Commitment v1: Nvidia L4 GPU running in Mumbai for 3 Years",
    "A2 Instance Core Sole Tenancy running in Americas",
    "Preemptible A2 Instance Core running in Americas",
    "N2 Custom Instance Core running in Americas",
    "Commitment v1: A4 Nvidia B200 (1 gpu slice) in Americas for 1 Year",
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Nvidia L4 GPU running in Americas", (GPU, "nvidia-l4", DEMAND)),
        (
            "Nvidia L4 GPU attached to Spot Preemptible VMs running in Iowa",
            (GPU, "nvidia-l4", SPOT),
        ),
        ("Nvidia Tesla A100 GPU running in Americas", (GPU, "nvidia-tesla-a100", DEMAND)),
        ("Nvidia Tesla A100 80GB GPU running in Americas", (GPU, "nvidia-a100-80gb", DEMAND)),
        (
            "Nvidia Tesla A100 GPU attached to DWS Defined Duration VMs running in Netherlands",
            (GPU, "nvidia-tesla-a100", FLEX),
        ),
        (
            "Nvidia H100 80GB GPU attached to Spot Preemptible VMs running in Virginia",
            (GPU, "nvidia-h100-80gb", SPOT),
        ),
        ("A2 Instance Core running in Americas", (CORE, "a2", DEMAND)),
        ("Spot Preemptible G2 Instance Ram running in Dallas", (RAM, "g2", SPOT)),
        ("DWS Defined Duration A3 Core running in Americas", (CORE, "a3", FLEX)),
        ("H200 141GB GPU running in Americas", (GPU, "nvidia-h200-141gb", DEMAND)),
        ("A4 Nvidia B200 (1 gpu slice) running in Netherlands", (GPU, "nvidia-b200", DEMAND)),
        (
            "Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas",
            (GPU, "nvidia-b200", SPOT),
        ),
        (
            "Nvidia Tesla T4 GPU running in Americas",
            (GPU, "nvidia-tesla-t4", DEMAND),
        ),
        (
            "Nvidia Tesla T4 GPU attached to DWS Defined Duration VMs running in Iowa",
            (GPU, "nvidia-tesla-t4", FLEX),
        ),
        (
            "N1 Predefined Instance Core running in Americas",
            (CORE, "n1", DEMAND),
        ),
        (
            "Spot Preemptible N1 Predefined Instance Ram running in Paris",
            (RAM, "n1", SPOT),
        ),
        (
            "RTX 6000 96GB running in Iowa",
            (GPU, "nvidia-rtx-pro-6000", DEMAND),
        ),
        (
            "RTX 6000 96GB attached to Spot Preemptible VMs running in Belgium",
            (GPU, "nvidia-rtx-pro-6000", SPOT),
        ),
        (
            "G4 Instance Core running in Iowa",
            (CORE, "g4", DEMAND),
        ),
        ("1/8 vGPU no lssd running in Iowa", None),
        ("Nvidia Tesla T4 Virtual Workstation GPU running in Americas", None),
        *((other, None) for other in OTHERS),
    ],
)
def test_skus_are_classified_by_their_text(
    text: str, kind: tuple[str, str, Capacity] | None
) -> None:
    assert billing_catalog.classify(text) == kind


def raw(
    sku: str,
    description: str,
    usd: float,
    unit: str = "h",
    regions: tuple[str, ...] = ("us-central1",),
) -> Any:
    units, nanos = divmod(round(usd * 1e9), 10**9)
    expression = {
        "usageUnit": unit,
        "tieredRates": [
            {
                "unitPrice": {
                    "units": str(units),
                    "nanos": nanos,
                }
            }
        ],
    }
    # The usage type is what the catalog has for everything that is not Spot; the reader must not
    # believe it.
    body = {
        "skuId": sku,
        "description": description,
        "category": {"usageType": "OnDemand"},
    }
    return body | {
        "serviceRegions": list(regions),
        "pricingInfo": [{"pricingExpression": expression}],
    }


SKUS = [
    raw("C1", "A2 Instance Core running in Americas", 0.04),
    raw("R1", "A2 Instance Ram running in Americas", 0.005, "GiBy.h"),
    raw(
        "G1",
        "Nvidia Tesla A100 GPU running in Americas",
        3.0,
        regions=("us-central1", "us-east1", "mars-north1"),
    ),
    raw("C2", "Spot Preemptible A2 Instance Core running in Americas", 0.01),
    raw("R2", "Spot Preemptible A2 Instance Ram running in Americas", 0.001, "GiBy.h"),
    raw("G2", "Nvidia Tesla A100 GPU attached to Spot Preemptible VMs running in Americas", 1.0),
    raw("X0", "Reserved Nvidia Tesla A100 GPU in Americas", 0.0),
    raw("X1", "Storage PD Capacity", 0.04, "GiBy.mo"),
]


def pages(path: str, headers: dict[str, str], body: bytes) -> tuple[int, object]:
    """Serves two pages, only to clients with the token."""
    assert "not-a-secret" not in path
    if headers["Authorization"] != "Bearer not-a-secret":
        return 403, {}
    token = parse_qs(urlsplit(path).query).get("pageToken")
    if token == ["more"]:
        return (200, {"skus": SKUS[4:]})
    return (200, {"skus": SKUS[:4], "nextPageToken": "more"})


def with_guesses() -> prices.Table:
    """The table of this repository as it would be if no source listed flex-start."""
    table = prices.load()
    skus: list[prices.Sku] = []
    for sku in table.skus:
        skus.append(replace(sku, basis=INFERRED) if sku.capacity is FLEX else sku)
    return replace(table, skus=tuple(skus))


def read_quote(table: prices.Table, capacity: Capacity) -> tuple[float, bool]:
    """Returns the dollars of a machine, and whether they are inferred."""
    quote = table.quote(MACHINE_TYPES["a2-highgpu-1g"], "us-central1", capacity)
    assert quote is not None
    return quote.usd, quote.inferred


def test_refresh_reads_every_page_and_keeps_unlisted_prices() -> None:
    old = with_guesses()
    with answering(pages) as endpoint:
        table = billing_catalog.refresh(old, TODAY, endpoint)
    assert table.fetched_at == TODAY
    assert table.notes == old.notes
    assert read_quote(table, SPOT) == (pytest.approx(12 * 0.01 + 85 * 0.001 + 1.0), False)
    assert read_quote(table, DEMAND) == (pytest.approx(12 * 0.04 + 85 * 0.005 + 3.0), False)
    assert read_quote(table, FLEX) == (pytest.approx(2.0204, abs=1e-4), True)
    bases: set[str] = set()
    for s in table.skus:
        bases.add(s.basis)
        if s.basis == LISTED:
            assert s.sku
            assert s.as_of == TODAY.isoformat()
    assert bases == {LISTED, INFERRED}
    assert "us-east1" in table.regions("nvidia-tesla-a100")
    assert "mars-north1" not in table.regions("nvidia-tesla-a100")


def test_a_guess_never_stays_above_a_list_price_that_fell() -> None:
    fell = []
    for s in SKUS:
        fell.append(raw("G1", s["description"], 1.2) if s["skuId"] == "G1" else s)
    with answering(lambda *_: (200, {"skus": fell})) as endpoint:
        usd, _ = read_quote(billing_catalog.refresh(with_guesses(), TODAY, endpoint), FLEX)
    assert usd == pytest.approx(1.2 + 12 * 0.01739 + 85 * 0.00233)


@pytest.mark.parametrize(
    ("skus", "error"),
    [
        (
            [raw("G9", s["description"], 9.0) if s["skuId"] == "G2" else s for s in SKUS],
            "nvidia-tesla-a100",
        ),
        ([*SKUS, raw("G8", "Nvidia Tesla A100 GPU running in Iowa", 2.9)], "two prices"),
        ([raw("C1", "A2 Instance Core running in Americas", 0.04, "mo")], "unit mo"),
    ],
    ids=["prices out of order", "two prices for one thing", "another unit"],
)
def test_refresh_refuses_prices_that_cannot_be_right(skus: list[Any], error: str) -> None:
    with (
        answering(lambda *_: (200, {"skus": skus})) as endpoint,
        pytest.raises(InputError, match=error),
    ):
        billing_catalog.refresh(prices.load(), TODAY, endpoint)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (403, {}),
        (500, b"oops"),
        (200, b"<html>"),
        (200, {"skus": []}),
    ],
)
def test_an_invalid_response_is_unjudged_and_shows_no_token(status: int, body: object) -> None:
    with answering(lambda *_: (status, body)) as endpoint, pytest.raises(Unjudged) as caught:
        billing_catalog.refresh(prices.load(), TODAY, endpoint)
    assert "not-a-secret" not in str(caught.value)


def test_a_connection_that_ends_early_is_unjudged() -> None:
    def hang_up(*_: object) -> tuple[int, object]:
        raise ConnectionAbortedError

    with answering(hang_up) as endpoint, pytest.raises(Unjudged, match="closed connection"):
        billing_catalog.refresh(prices.load(), TODAY, endpoint)


def test_a_token_in_another_form_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    # The end of a file, as a Secret of Kubernetes keeps it.
    monkeypatch.setenv(billing_catalog.ENV_TOKEN, "not-a-secret\n")
    assert billing_catalog.credentials() == {"Authorization": "Bearer not-a-secret"}
    headers = {"Authorization": "Bearer not-a-\nsecret"}
    with pytest.raises(Unjudged) as caught:
        billing_catalog.get("http://127.0.0.1:1/v1", headers)
    assert "secret" not in str(caught.value)


def test_without_a_token_the_gcloud_login_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(billing_catalog.ENV_TOKEN)
    monkeypatch.setenv("PATH", str(tmp_path))  # no gcloud
    with pytest.raises(Unjudged, match="no Google credentials"):
        billing_catalog.refresh(prices.load(), TODAY, "http://127.0.0.1:1")
    gcloud = tmp_path / "gcloud"
    gcloud.write_text(
        '#!/bin/sh\n[ "$*" = "auth application-default print-access-token" ] && echo from-gcloud\n'
    )
    gcloud.chmod(0o755)
    assert billing_catalog.credentials() == {"Authorization": "Bearer from-gcloud"}
