"""What capacity costs, and below which share of useful time the cheaper capacity costs more.

Prices and closed forms are those of `holdfast place`, so that the two never disagree. The goodput
alert uses this break-even by default: at a constant of 0.8 it fired while Spot at 0.40 to 0.52 of
on-demand was still cheaper. Pure.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.cost import prices
from holdfast.cost.churn.estimate import Exposure
from holdfast.cost.receipt import Receipt, receipt
from holdfast.ledger import closed_forms as forms
from holdfast.ledger.job_ledger import JobLedger
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.machines import MACHINE_TYPES, MachineType
from holdfast.vocabulary.pools import Pool

HOUR_S = 3_600
CONFIDENCE = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """Dollars an hour of one machine in one region."""

    machine: str
    region: str
    spot: float
    flex_start: float | None
    on_demand: float
    fetched_at: str
    note: str = ""

    @property
    def rival(self) -> tuple[Capacity, float]:
        """The cheaper one of those that are not preempted."""
        if self.flex_start is not None and self.flex_start < self.on_demand:
            return Capacity.FLEX_START, self.flex_start
        return Capacity.ON_DEMAND, self.on_demand


@dataclass(frozen=True, kw_only=True, slots=True)
class Money:
    """What the jobs that ran on Spot cost for a useful hour, and where that stops paying."""

    prices: Prices
    paid_usd: float
    wasted_usd: float
    waited_h: float
    on_demand_usd: float
    usd_per_useful_h: float
    interval: tuple[float, float]
    """90 %, from the count of evictions alone."""
    flex_usd_per_useful_h: float | None
    on_demand_usd_per_useful_h: float
    evictions: int
    per_node_h: float
    """Evictions a running node-hour."""
    flip_per_node_h: float
    """Above this Spot costs more than its cheaper rival; inf: at no churn, 0: at any."""
    break_even_share: float
    """Below this share of useful time Spot costs more than on-demand."""

    @property
    def pays(self) -> bool:
        rivals = (self.on_demand_usd_per_useful_h, self.flex_usd_per_useful_h or math.inf)
        return self.usd_per_useful_h < min(rivals)


def prices_of(machine: str, region: str) -> Prices:
    known = _machine(machine)
    table = prices.load()
    found = {capacity: table.quote(known, region, capacity) for capacity in prices.CAPACITIES}
    spot, flex, demand = (
        found[c] for c in (Capacity.SPOT, Capacity.FLEX_START, Capacity.ON_DEMAND)
    )
    if spot is None or demand is None:
        allowed = ", ".join(table.regions(known.accelerator)) or "none"
        raise InputError(
            f"no prices of {machine}",
            got=region,
            allowed=allowed,
            fix="give a region with --region",
        )
    return Prices(
        machine=machine,
        region=region,
        spot=spot.usd,
        flex_start=flex.usd if flex else None,
        on_demand=demand.usd,
        fetched_at=table.fetched_at.isoformat(),
        note=table.note(known.accelerator, region),
    )


def _machine(name: str) -> MachineType:
    known = MACHINE_TYPES.get(name)
    if known is None or not known.accelerator:
        gpus = ", ".join(m.name for m in MACHINE_TYPES.values() if m.accelerator)
        raise InputError(
            "no machine type with a price",
            got=name,
            allowed=gpus,
            fix="give a GPU machine with --machine",
        )
    return known


def money(ledgers: Sequence[JobLedger], at: Prices) -> Money | None:
    """None where no useful hour was had: nothing can be divided by it."""
    bill = receipt(ledgers, at.spot, at.on_demand) if ledgers else None
    if bill is None or bill.usd_per_useful_hour is None:
        return None
    paid_h = bill.machine_hours
    wasted_h = bill.wasted_usd / at.spot
    useful_h = bill.useful_hours
    # what an undisturbed run would have paid for an hour of work
    calm_h = (paid_h - wasted_h) / useful_h
    return Money(
        prices=at,
        paid_usd=bill.paid_usd,
        wasted_usd=bill.wasted_usd,
        waited_h=bill.waited_hours,
        on_demand_usd=bill.on_demand_usd,
        usd_per_useful_h=bill.usd_per_useful_hour,
        interval=_interval(at.spot, calm_h, wasted_h / useful_h, bill.evictions),
        flex_usd_per_useful_h=at.flex_start * calm_h if at.flex_start else None,
        on_demand_usd_per_useful_h=at.on_demand * calm_h,
        evictions=bill.evictions,
        per_node_h=bill.evictions / paid_h,
        flip_per_node_h=flip(ledgers, bill, at),
        break_even_share=at.spot / at.on_demand / calm_h,
    )


def _interval(usd: float, calm_h: float, wasted_h: float, evictions: int) -> tuple[float, float]:
    """The waste follows the number of evictions, which is a Poisson count; the rest is taken as it
    was.
    """
    if evictions == 0:
        return usd * calm_h, math.inf
    low, high = Exposure(events=evictions, hours=1.0).interval(CONFIDENCE)
    return usd * (calm_h + wasted_h * low / evictions), usd * (calm_h + wasted_h * high / evictions)


def flip(ledgers: Sequence[JobLedger], bill: Receipt, at: Prices) -> float:
    """Evictions a running node-hour at which Spot costs as much as its cheaper rival, from what was
    measured here.
    """
    back_s = [r.seconds for x in ledgers for r in x.recoveries if r.seconds is not None]
    restart_h = (sum(back_s) / len(back_s) if back_s else 0.0) / HOUR_S
    saves = sum(len(x.commits_us) for x in ledgers)
    stopped_h = (
        sum(us for x in ledgers for state, us in x.totals_us.items() if state == "checkpointing")
        / 3.6e9
    )
    ratio = at.spot / at.rival[1]
    if not saves:  # a queue: an eviction costs the restart, and what it wasted
        cost_h = max(
            restart_h, bill.wasted_usd / at.spot / bill.evictions if bill.evictions else 0.0
        )
        return forms.break_even(
            ratio,
            lambda c: forms.batch_slowdown(
                churn=c,
                restart_h=cost_h,
                item_batch_h=0.0,
            ),
        )
    return forms.break_even_churn(
        ratio, checkpoint_h=max(stopped_h / saves, 1e-6), restart_h=restart_h
    )


def break_even_share(pools: Iterable[Pool], region: str) -> float | None:
    """Below this share of useful time the most expensive Spot pool costs more than on-demand; None
    without prices.

    The metric has no label for the capacity: one threshold may fire early for cheaper GPUs, never
    late.
    """
    table = prices.load()
    shares: list[float] = []
    for pool in pools:
        machine = MACHINE_TYPES.get(pool.machine_type)
        if pool.capacity is not Capacity.SPOT or machine is None or not machine.accelerator:
            continue
        spot, demand = (
            table.quote(machine, region, c) for c in (Capacity.SPOT, Capacity.ON_DEMAND)
        )
        if spot and demand:
            shares.append(spot.usd / demand.usd)
    return round(max(shares), 2) if shares else None


def usd_by_pool(pools: Iterable[Pool], region: str) -> tuple[tuple[str, float], ...]:
    """Dollars an hour of one node of each pool whose machine has a price."""
    table = prices.load()
    rows: list[tuple[str, float]] = []
    for pool in pools:
        machine = MACHINE_TYPES.get(pool.machine_type)
        capacity = Capacity.FLEX_START if pool.capacity is Capacity.QUEUED else pool.capacity
        if pool.own_usd_per_hour is not None:
            rows.append((pool.name, pool.own_usd_per_hour))
        elif machine and machine.accelerator and (quote := table.quote(machine, region, capacity)):
            rows.append((pool.name, round(quote.usd, 4)))
    return tuple(rows)
