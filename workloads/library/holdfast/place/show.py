"""Prints what the placement room answers: tables on standard output, JSON on request, the rest on standard error."""

import datetime
import json
import sys

from holdfast.contract.capacity import Capacity
from holdfast.contract.machines import ACCELERATORS, MachineType
from holdfast.place import matrix as decision
from holdfast.place import prices as price_table
from holdfast.tables import print_json, print_table


def matrix(*, as_json: bool) -> None:
    if as_json:
        print(json.dumps(decision.as_json(), indent=2))
    else:
        print_table(
            ("rule", "workload", "runs on", "discount", "because"),
            [(r.id.value, r.scenario, r.placement.value, r.discount, r.reason) for r in decision.RULES],
        )


def prices(*, as_json: bool) -> None:
    table = price_table.load()
    rows = [
        (accelerator, region, machine.name, *(_price(table, machine, region, c) for c in price_table.CAPACITIES))
        for accelerator in ACCELERATORS
        for machine in [price_table.reference_machine(accelerator)]
        for region in table.regions(accelerator)
    ]
    head = ("gpu", "region", "machine", *(c.value for c in price_table.CAPACITIES))
    if as_json:
        body = [dict(zip(head, row, strict=True)) | {"as_of": _dates(table, row[0], row[1])} for row in rows]
        print_json("price-list", fetched_at=table.fetched_at.isoformat(), usd_per_hour=body)
    else:
        print_table(head, rows)
        # Not on standard output: a script that reads the table must not meet it.
        print(basis(table), file=sys.stderr)
        print("* inferred: from the same GPU elsewhere, or its ratio there", file=sys.stderr)
        for note in table.notes:
            print(f"note: {note.accelerator} in {note.region}: {note.text}", file=sys.stderr)


def refresh() -> None:
    """Rewrites the table of this installation."""
    from holdfast.place import catalog

    table = catalog.refresh(price_table.load(), datetime.datetime.now(tz=datetime.UTC).date())
    price_table.TABLE.write_text(price_table.dump(table))
    listed = sum(sku.basis == price_table.LISTED for sku in table.skus)
    print(f"{price_table.TABLE}: {listed} SKUs listed, {len(table.skus) - listed} inferred", file=sys.stderr)


def basis(table: price_table.Table) -> str:
    age = (datetime.datetime.now(tz=datetime.UTC).date() - table.fetched_at).days
    stale = f"; {age} days old, `holdfast prices --refresh`" if age > price_table.STALE_DAYS else ""
    return f"prices of {table.fetched_at}, list, USD{stale}; * inferred"


def _dates(table: price_table.Table, accelerator: str, region: str) -> dict[str, str | None]:
    """Date of each capacity's price; null where a part has none."""
    machine = price_table.reference_machine(accelerator)
    quotes = {c: table.quote(machine, region, c) for c in price_table.CAPACITIES}
    return {c.value: quote.as_of or None for c, quote in quotes.items() if quote}


def _price(table: price_table.Table, machine: MachineType, region: str, capacity: Capacity) -> str:
    quote = table.quote(machine, region, capacity)
    return "-" if quote is None else f"{quote.usd:.4f}{'*' if quote.inferred else ''}"
