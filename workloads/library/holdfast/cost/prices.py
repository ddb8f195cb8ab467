"""What a GPU machine costs an hour on each capacity: a dated table of SKUs, and the machine's price
from it.

The table is in the repository, so advice works offline; `prices --refresh` rewrites it. Google
sells a machine in parts (cores, memory, GPUs); bundled local SSD is not counted, 1 to 2 % of
a2-ultragpu and a3-highgpu.
"""

import datetime
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
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
"""Families without SKUs for cores and memory: the price of a GPU holds its share of the host."""

LISTED = "listed"  # read from the catalogue
SOLVED = "solved"  # computed from listed prices of whole machines
INFERRED = "inferred"  # a listed price of the same GPU elsewhere, or the ratio there


@dataclass(frozen=True, slots=True, kw_only=True)
class Sku:
    part: str
    """CORE and RAM of a machine family (g2, a2, a3), GPU of an accelerator."""
    of: str
    capacity: Capacity
    regions: tuple[str, ...]
    usd: float
    """Per hour and core, GiB or GPU."""
    basis: str = LISTED
    sku: str = ""
    """Empty where the source gave no id."""
    description: str = ""
    as_of: str = ""
    """YYYY-MM-DD at which the source had this price; empty where the source has no date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Why the usual order Spot < flex-start <= on-demand does not hold here; without one the table
    is refused.
    """

    accelerator: str
    region: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    usd: float
    inferred: bool
    as_of: str = ""
    """Of its oldest part; empty where one has no date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    fetched_at: datetime.date
    sources: tuple[str, ...]
    notes: tuple[Note, ...]
    skus: tuple[Sku, ...]
    _by_key: dict[tuple[str, str, Capacity, str], Sku] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        # The first of two, as a search through the rows would find it.
        rows = {}
        for s in reversed(self.skus):
            for region in s.regions:
                rows[(s.part, s.of, s.capacity, region)] = s
        object.__setattr__(self, "_by_key", rows)

    def quote(self, machine: MachineType, region: str, capacity: Capacity) -> Quote | None:
        """None when a part has no price; a machine is never priced from the parts that are known."""
        wanted = {(GPU, machine.accelerator): machine.gpus}
        host = family(machine.name)
        if host not in SLICED:
            wanted |= {(CORE, host): machine.vcpus, (RAM, host): machine.memory_gib}
        found = [
            (sku, amount)
            for key, amount in wanted.items()
            if (sku := self.sku(*key, region, capacity))
        ]
        # A sum without the GPU looks like a bargain, and was one in a public catalogue.
        if len(found) < len(wanted):
            return None
        return Quote(
            usd=sum(sku.usd * amount for sku, amount in found),
            inferred=any(sku.basis == INFERRED for sku, _ in found),
            # The empty text of an undated part is the least of all.
            as_of=min(sku.as_of for sku, _ in found),
        )

    def regions(self, accelerator: str) -> tuple[str, ...]:
        """Where at least one capacity of this GPU has a price."""
        rows = (sku for sku in self.skus if sku.part == GPU and sku.of == accelerator)
        return tuple(sorted({region for sku in rows for region in sku.regions}))

    def note(self, accelerator: str, region: str) -> str:
        return next(
            (n.text for n in self.notes if (n.accelerator, n.region) == (accelerator, region)), ""
        )

    def sku(self, part: str, of: str, region: str, capacity: Capacity) -> Sku | None:
        """The price of one part there."""
        return self._by_key.get((part, of, capacity, region))


def family(machine: str) -> str:
    return machine.split("-")[0]


def reference_machine(accelerator: str) -> MachineType:
    """The machine with the fewest GPUs, by which prices are compared; the common one where several
    have as few.
    """
    known = [m for m in MACHINE_TYPES.values() if m.accelerator == accelerator]
    return next((m for m in known if m.name == "g2-standard-8"), min(known, key=lambda m: m.gpus))


def load(path: Path = TABLE) -> Table:
    """The table, checked; InputError names what is wrong with it."""
    try:
        body = json.loads(path.read_text())
        if body["schema"] != SCHEMA:
            raise ValueError(f"schema {body['schema']}")
        table = Table(
            fetched_at=datetime.date.fromisoformat(body["fetched_at"]),
            sources=tuple(body["sources"]),
            notes=tuple(Note(**note) for note in body["notes"]),
            skus=tuple(_sku(row) for row in body["skus"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"price table {path.name}",
            got=f"{type(error).__name__}: {error}",
            allowed=f"an object of schema {SCHEMA}",
            fix="restore it from git, or rewrite it with `holdfast prices --refresh`",
        ) from error
    check(table)
    return table


def dump(table: Table) -> str:
    """One SKU a line, so that a refresh shows as a readable diff."""
    lines = [json.dumps(asdict(sku)) for sku in table.skus]
    notes = [asdict(note) for note in table.notes]
    head = {
        "schema": SCHEMA,
        "fetched_at": table.fetched_at.isoformat(),
        "sources": list(table.sources),
        "notes": notes,
    }
    return json.dumps(head, indent=1)[:-2] + ',\n "skus": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


def check(table: Table) -> None:
    """Refuse a table whose order of prices is not explained: SKUs were mixed up before, DWS for
    on-demand.
    """
    for accelerator, region, text in disorders(table):
        if not table.note(accelerator, region):
            raise InputError(
                f"prices of {accelerator} in {region}",
                got=text,
                allowed="spot < flex-start <= on-demand, each above 0",
                fix=(
                    "if the catalogue really says so, add a note for this accelerator and region to"
                    " prices.json"
                ),
            )


def disorders(table: Table) -> Iterator[tuple[str, str, str]]:
    """Accelerator, region and what was found there, wherever the usual order does not hold."""
    for accelerator in ACCELERATORS:
        machine = reference_machine(accelerator)
        for region in table.regions(accelerator):
            usd = {
                c: quote.usd
                for c in CAPACITIES
                if (quote := table.quote(machine, region, c)) is not None
            }
            if not _in_order(usd):
                yield (
                    accelerator,
                    region,
                    ", ".join(f"{c.value} {price:.4f}" for c, price in usd.items()),
                )


def _in_order(usd: dict[Capacity, float]) -> bool:
    spot, flex, demand = (usd.get(capacity) for capacity in CAPACITIES)
    # Reservations are listed at 0.00; one of them in the table wins every comparison.
    above = min(usd.values(), default=1.0) > 0.0 and all(
        spot is None or p is None or spot < p for p in (flex, demand)
    )
    # Equal is allowed between flex-start and on-demand: some GPUs get no discount there.
    return above and (flex is None or demand is None or flex <= demand * (1 + 1e-9))


def _sku(row: dict[str, Any]) -> Sku:
    typed: dict[str, Any] = {
        "capacity": Capacity(row["capacity"]),
        "regions": tuple(row["regions"]),
        "usd": float(row["usd"]),
    }
    sku = Sku(**row | typed)
    if sku.part not in (CORE, RAM, GPU) or sku.basis not in (LISTED, SOLVED, INFERRED):
        raise ValueError(f"part {sku.part}, basis {sku.basis}")
    if sku.as_of:
        datetime.date.fromisoformat(sku.as_of)
    return sku
