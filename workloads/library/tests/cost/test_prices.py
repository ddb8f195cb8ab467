import json
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cost import prices
from holdfast.cost.prices import CAPACITIES, GPU, Note, Table
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.machines import ACCELERATORS, MACHINE_TYPES

A100 = "nvidia-tesla-a100"
# Google sells these, and no public text has the price; a refresh of the table brings it.
UNPRICED = {"nvidia-rtx-pro-6000": {Capacity.SPOT}}


@pytest.fixture(scope="module")
def table() -> Table:
    return prices.load()


def usd(table: Table, machine: str, region: str) -> list[float]:
    prices_usd = []
    for capacity in CAPACITIES:
        quote = table.quote(MACHINE_TYPES[machine], region, capacity)
        if quote is not None:
            prices_usd.append(round(quote.usd, 4))
    return prices_usd


@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_a_gpu_has_prices_wherever_it_is_sold(table: Table, accelerator: str) -> None:
    machine = prices.reference_machine(accelerator)
    regions = table.regions(accelerator)
    unpriced = UNPRICED.get(accelerator, set())
    sold = machine.sold_as.intersection(CAPACITIES) - unpriced
    assert sold
    priced = 0
    for region in regions:
        for capacity in unpriced:
            assert not table.quote(machine, region, capacity)
        priced += all(table.quote(machine, region, capacity) for capacity in sold)
    assert priced >= min(3, len(regions))
    assert set(regions) == {zone.rpartition("-")[0] for zone in ACCELERATORS[accelerator].zones}
    for region in regions:
        spot = table.quote(machine, region, Capacity.SPOT)
        demand = table.quote(machine, region, Capacity.ON_DEMAND)
        if spot and demand:
            assert 0 <= 1 - spot.usd / demand.usd < 0.95


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ("g2-standard-8", [0.3406, 0.8536, 0.8536]),
        ("a2-highgpu-1g", [1.9277, 2.0204, 3.6736]),
        ("a2-highgpu-8g", [15.4214, 16.1630, 29.3890]),
        ("a3-highgpu-1g", [3.3537, 4.7078, 10.9790]),
        ("n1-standard-4", [0.2272, 0.5400, 0.5400]),
        ("g4-standard-48", [2.2500, 4.4999]),
    ],
)
def test_a_machine_costs_its_cores_memory_and_gpus(
    table: Table, machine: str, expected: list[float]
) -> None:
    assert usd(table, machine, "us-central1") == pytest.approx(expected, rel=2e-4)


def test_each_note_explains_a_disorder_in_the_table(table: Table) -> None:
    disorders = set()
    for accelerator, region, _ in prices.disorders(table):
        disorders.add((accelerator, region))
    explained = set()
    for note in table.notes:
        explained.add((note.accelerator, note.region))
    assert explained == disorders


def change_price(
    table: Table,
    capacity: Capacity,
    usd: float,
    accelerator: str = "",
) -> Table:
    """Changes the price of each part, or of one GPU only."""
    skus = []
    for sku in table.skus:
        is_selected = not accelerator or (sku.part, sku.of) == (GPU, accelerator)
        if sku.capacity is capacity and is_selected:
            skus.append(replace(sku, usd=usd))
        else:
            skus.append(sku)
    return replace(table, skus=tuple(skus))


@pytest.mark.parametrize(
    ("capacity", "usd", "accelerator", "shown"),
    [
        (Capacity.ON_DEMAND, 1.0, A100, A100),
        (Capacity.SPOT, 0.0, "", "each above 0"),
        (Capacity.SPOT, -1.0, "", "each above 0"),
    ],
    ids=["flex-start's price in the on-demand column", "free", "negative"],
)
def test_disorder_needs_a_note(
    table: Table,
    capacity: Capacity,
    usd: float,
    accelerator: str,
    shown: str,
) -> None:
    wrong = change_price(table, capacity, usd, accelerator)
    with pytest.raises(InputError, match=shown):
        prices.check(wrong)
    notes: list[Note] = []
    for name, region, _ in prices.disorders(wrong):
        notes.append(Note(accelerator=name, region=region, text="so it is"))
    prices.check(replace(wrong, notes=tuple(notes)))


def test_writing_and_reading_gives_the_same_table(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text(prices.dump(table))
    assert prices.load(path) == table
    assert path.read_text() == prices.TABLE.read_text()


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body.pop("skus"),
        lambda body: body.update(schema="other/1"),
        lambda body: body.update(fetched_at="yesterday"),
        lambda body: body["skus"][0].update(capacity="rented"),
        lambda body: body["skus"][0].update(part="wheel"),
        lambda body: body["skus"][0].pop("usd"),
        lambda body: body["skus"][0].update(as_of="last week"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path: Path, damage: object) -> None:
    body = json.loads(prices.TABLE.read_text())
    damage(body)  # type: ignore[operator]
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(body))
    with pytest.raises(InputError, match=r"price table prices\.json") as caught:
        prices.load(path)
    assert "--refresh" not in caught.value.fix, "it keeps parts of the table that it reads first"


def test_a_machine_is_as_old_as_its_oldest_part(table: Table) -> None:
    def read_quote(
        table: Table, machine: str, capacity: Capacity = Capacity.SPOT
    ) -> tuple[str, bool] | None:
        quote = table.quote(MACHINE_TYPES[machine], "us-central1", capacity)
        return quote and (quote.as_of, quote.inferred)

    assert read_quote(table, "a2-highgpu-1g") == ("2026-08-02", False)
    assert read_quote(table, "g2-standard-8") == ("", False)
    flex = read_quote(table, "g2-standard-8", Capacity.FLEX_START)
    assert flex
    assert flex[1]
    aged = []
    for sku in table.skus:
        is_dated_gpu = sku.part == GPU and sku.as_of
        aged.append(replace(sku, as_of="2025-01-01") if is_dated_gpu else sku)
    aged_table = replace(table, skus=tuple(aged))
    assert read_quote(aged_table, "a2-highgpu-1g") == ("2025-01-01", False)


def test_a_machine_with_an_unpriced_part_has_no_price(table: Table) -> None:
    hosts = tuple(sku for sku in table.skus if sku.part != GPU)
    without = replace(table, skus=hosts)
    assert without.quote(MACHINE_TYPES["a2-highgpu-1g"], "us-central1", Capacity.SPOT) is None
    b200 = MACHINE_TYPES["a4-highgpu-8g"]
    slice_usd = table.sku(GPU, b200.accelerator, "us-central1", Capacity.SPOT)
    quote = table.quote(b200, "us-central1", Capacity.SPOT)
    assert slice_usd
    assert quote
    assert quote.usd == pytest.approx(8 * slice_usd.usd)
