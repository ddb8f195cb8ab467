"""Prices a GPU machine by the hour on each capacity, from a dated table of SKUs.

The table is in the repository, so advice works offline; `prices --refresh` rewrites it. Google
sells a machine in parts (cores, memory, GPUs); bundled local SSD is not counted, 1 to 2 % of
a2-ultragpu and a3-highgpu.
"""

import datetime
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.machines import ACCELERATORS, MACHINE_TYPES, MachineType

SCHEMA = "holdfast.prices/1"
TABLE = Path(__file__).with_name("prices.json")
STALE_DAYS = 60
CAPACITIES = (Capacity.SPOT, Capacity.FLEX_START, Capacity.ON_DEMAND)
CORE = "core"
RAM = "ram"
GPU = "gpu"

SLICED = frozenset({"a4"})
"""Families without SKUs for cores and memory: the price of a GPU includes its share of the host."""

LISTED = "listed"  # read from the catalog
SOLVED = "solved"  # computed from listed prices of whole machines
INFERRED = "inferred"  # a listed price of the same GPU elsewhere, or the ratio there


@dataclass(frozen=True, slots=True, kw_only=True)
class Sku:
    part: str
    """CORE or RAM of a machine family (g2, a2, a3), or GPU of an accelerator."""
    of: str
    """The machine family or accelerator."""
    capacity: Capacity
    regions: tuple[str, ...]
    usd: float
    """Price of an hour of one core, GiB or GPU."""
    basis: str = LISTED
    sku: str = ""
    """Id of the SKU; empty if the source gave none."""
    description: str = ""
    as_of: str = ""
    """Date of the price as YYYY-MM-DD; empty if the source has no date."""


SkuKey = tuple[str, str, Capacity, str]
"""Part, family or accelerator, capacity, region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Explains why the usual order Spot < flex-start <= on-demand does not hold in a region.

    A table that breaks the order without a note is refused.
    """

    accelerator: str
    region: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    usd: float
    inferred: bool
    as_of: str = ""
    """Date of its oldest part; empty if a part has no date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    fetched_at: datetime.date
    sources: tuple[str, ...]
    notes: tuple[Note, ...]
    skus: tuple[Sku, ...]
    _by_key: dict[SkuKey, Sku] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_key: dict[SkuKey, Sku] = {}
        # Reversed, so that the first of two equal keys wins, as in a search through the rows.
        for sku in reversed(self.skus):
            for region in sku.regions:
                by_key[sku.part, sku.of, sku.capacity, region] = sku
        object.__setattr__(self, "_by_key", by_key)

    def quote(self, machine: MachineType, region: str, capacity: Capacity) -> Quote | None:
        """Returns None if a part has no price.

        A sum without the GPU would look like a bargain, and was one in a public catalog.
        """
        amounts: dict[tuple[str, str], float] = {(GPU, machine.accelerator): machine.gpus}
        host = family(machine.name)
        if host not in SLICED:
            amounts[CORE, host] = machine.vcpus
            amounts[RAM, host] = machine.memory_gib
        usd = 0.0
        inferred = False
        dates: list[str] = []
        for (part, name), amount in amounts.items():
            sku = self.sku(part, name, region, capacity)
            if sku is None:
                return None
            usd += sku.usd * amount
            inferred = inferred or sku.basis == INFERRED
            dates.append(sku.as_of)
        # The empty date of an undated part is the least.
        return Quote(usd=usd, inferred=inferred, as_of=min(dates))

    def regions(self, accelerator: str) -> tuple[str, ...]:
        """Returns the regions in which some capacity of this GPU has a price."""
        regions: set[str] = set()
        for sku in self.skus:
            if sku.part == GPU and sku.of == accelerator:
                regions.update(sku.regions)
        return tuple(sorted(regions))

    def note(self, accelerator: str, region: str) -> str:
        for note in self.notes:
            if (note.accelerator, note.region) == (accelerator, region):
                return note.text
        return ""

    def sku(self, part: str, name: str, region: str, capacity: Capacity) -> Sku | None:
        """Returns the price of a part of a family or accelerator; None without one."""
        return self._by_key.get((part, name, capacity, region))


def family(machine: str) -> str:
    return machine.split("-")[0]


def reference_machine(accelerator: str) -> MachineType:
    """Returns the machine by which prices are compared: the one with the fewest GPUs.

    If several have as few, it is the common one.
    """
    machines = [m for m in MACHINE_TYPES.values() if m.accelerator == accelerator]
    for machine in machines:
        if machine.name == "g2-standard-8":
            return machine
    return min(machines, key=lambda machine: machine.gpus)


def load(path: Path = TABLE) -> Table:
    """Returns the table, checked. Raises InputError if it is wrong."""
    try:
        return _parse(path.read_text())
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"price table {path.name}",
            got=f"{type(error).__name__}: {error}",
            allowed=f"an object of schema {SCHEMA}",
            fix="restore it from git, or install the library again",
        ) from error


@lru_cache(maxsize=1)
def _parse(text: str) -> Table:
    """Returns the checked table of a file; a command reads the same one several times."""
    body = json.loads(text)
    if body["schema"] != SCHEMA:
        raise ValueError(f"schema {body['schema']}")
    table = Table(
        fetched_at=datetime.date.fromisoformat(body["fetched_at"]),
        sources=tuple(body["sources"]),
        notes=tuple(Note(**note) for note in body["notes"]),
        skus=tuple(_parse_sku(row) for row in body["skus"]),
    )
    check(table)
    return table


def dump(table: Table) -> str:
    """Returns the table as JSON with one SKU a line, so that the diff of a refresh is readable."""
    lines = [json.dumps(asdict(sku)) for sku in table.skus]
    notes = [asdict(note) for note in table.notes]
    head = {
        "schema": SCHEMA,
        "fetched_at": table.fetched_at.isoformat(),
        "sources": list(table.sources),
        "notes": notes,
    }
    opening = json.dumps(head, indent=1).removesuffix("\n}")
    skus = ",\n  ".join(lines)
    return f'{opening},\n "skus": [\n  {skus}\n ]\n}}\n'


def check(table: Table) -> None:
    """Raises InputError if the order of prices is broken without a note.

    Such an order has shown mixed up SKUs before, DWS for on-demand.
    """
    for accelerator, region, text in disorders(table):
        if not table.note(accelerator, region):
            raise InputError(
                f"prices of {accelerator} in {region}",
                got=text,
                allowed="spot < flex-start <= on-demand, each above 0",
                fix=(
                    "if the catalog really says so, add a note for this accelerator and region to"
                    " prices.json"
                ),
            )


def disorders(table: Table) -> Iterator[tuple[str, str, str]]:
    """Yields accelerator, region and prices wherever the usual order does not hold."""
    for accelerator in ACCELERATORS:
        machine = reference_machine(accelerator)
        for region in table.regions(accelerator):
            usd: dict[Capacity, float] = {}
            for capacity in CAPACITIES:
                quote = table.quote(machine, region, capacity)
                if quote is not None:
                    usd[capacity] = quote.usd
            if not _is_in_order(usd):
                prices: list[str] = []
                for capacity, price in usd.items():
                    prices.append(f"{capacity.value} {price:.4f}")
                yield accelerator, region, ", ".join(prices)


def _is_in_order(usd: dict[Capacity, float]) -> bool:
    spot = usd.get(Capacity.SPOT)
    flex = usd.get(Capacity.FLEX_START)
    on_demand = usd.get(Capacity.ON_DEMAND)
    # Reservations are listed at 0.00, and would win every comparison.
    if min(usd.values(), default=1.0) <= 0.0:
        return False
    for price in (flex, on_demand):
        if spot is not None and price is not None and spot >= price:
            return False
    # Flex-start may cost as much as on-demand: some GPUs get no discount there.
    if flex is None or on_demand is None:
        return True
    return flex <= on_demand * (1 + 1e-9)


def _parse_sku(row: dict[str, Any]) -> Sku:
    typed: dict[str, Any] = {
        "capacity": Capacity(row["capacity"]),
        "regions": tuple(row["regions"]),
        "usd": float(row["usd"]),
    }
    sku = Sku(**row | typed)
    is_part_known = sku.part in (CORE, RAM, GPU)
    is_basis_known = sku.basis in (LISTED, SOLVED, INFERRED)
    if not (is_part_known and is_basis_known):
        raise ValueError(f"part {sku.part}, basis {sku.basis}")
    if sku.as_of:
        datetime.date.fromisoformat(sku.as_of)
    return sku
