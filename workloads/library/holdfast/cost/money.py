"""Computes what capacity costs, and below which share of useful time Spot costs more.

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
from holdfast.ledger import closed_forms
from holdfast.ledger.account import JobLedger
from holdfast.ledger.timeline import State
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
        """The cheaper one of the capacities that are not preempted, and its price."""
        if self.flex_start is not None and self.flex_start < self.on_demand:
            return Capacity.FLEX_START, self.flex_start
        return Capacity.ON_DEMAND, self.on_demand

    def find_rate(self, capacity: str) -> float:
        """Returns the price on a capacity by its name; 0 for a reservation, which has its own."""
        if capacity == Capacity.RESERVED.value:
            return 0.0
        if capacity == Capacity.SPOT.value:
            return self.spot
        if capacity == Capacity.FLEX_START.value:
            return self.flex_start or self.on_demand
        return self.on_demand


@dataclass(frozen=True, kw_only=True, slots=True)
class Money:
    """The cost of a useful hour of jobs on Spot, and where that stops paying."""

    prices: Prices
    paid_usd: float
    wasted_usd: float
    waited_h: float
    on_demand_usd: float
    usd_per_useful_h: float
    interval: tuple[float, float]
    """A 90 % interval of usd_per_useful_h, from the count of evictions alone."""
    flex_usd_per_useful_h: float | None
    on_demand_usd_per_useful_h: float
    evictions: int
    per_node_h: float
    """Evictions a running node-hour."""
    flip_per_node_h: float
    """Evictions a running node-hour above which Spot costs more than its cheaper rival.

    It is inf if Spot never does, 0 if it always does.
    """
    break_even_share: float
    """The share of useful time below which Spot costs more than on-demand."""

    @property
    def pays(self) -> bool:
        flex_usd = self.flex_usd_per_useful_h or math.inf
        return self.usd_per_useful_h < min(self.on_demand_usd_per_useful_h, flex_usd)


def find_prices(machine: str, region: str) -> Prices:
    """Raises InputError for an unknown machine, or a region without its prices."""
    machine_type = _find_machine(machine)
    accelerator = machine_type.accelerator
    table = prices.load()
    spot = table.quote(machine_type, region, Capacity.SPOT)
    flex = table.quote(machine_type, region, Capacity.FLEX_START)
    on_demand = table.quote(machine_type, region, Capacity.ON_DEMAND)
    if spot is None or on_demand is None:
        raise InputError(
            f"no prices of {machine}",
            got=region,
            allowed=", ".join(table.regions(accelerator)) or "none",
            fix="give a region with --region",
        )
    return Prices(
        machine=machine,
        region=region,
        spot=spot.usd,
        flex_start=flex.usd if flex else None,
        on_demand=on_demand.usd,
        fetched_at=table.fetched_at.isoformat(),
        note=table.note(accelerator, region),
    )


def _find_machine(name: str) -> MachineType:
    machine = MACHINE_TYPES.get(name)
    if machine is None or not machine.accelerator:
        gpu_machines = [m.name for m in MACHINE_TYPES.values() if m.accelerator]
        raise InputError(
            "no machine type with a price",
            got=name,
            allowed=", ".join(gpu_machines),
            fix="give a GPU machine with --machine",
        )
    return machine


def money(ledgers: Sequence[JobLedger], rates: Prices) -> Money | None:
    """Returns None without a useful hour, because nothing can be divided by it."""
    if not ledgers:
        return None
    bill = receipt(ledgers, rates.spot, rates.on_demand)
    if bill.usd_per_useful_hour is None:
        return None
    paid_h = bill.machine_hours
    wasted_h = bill.wasted_usd / rates.spot
    useful_h = bill.useful_hours
    # Hours that an undisturbed run would pay for an hour of work.
    calm_h = (paid_h - wasted_h) / useful_h
    flex_usd = None
    if rates.flex_start:
        flex_usd = rates.flex_start * calm_h
    return Money(
        prices=rates,
        paid_usd=bill.paid_usd,
        wasted_usd=bill.wasted_usd,
        waited_h=bill.waited_hours,
        on_demand_usd=bill.on_demand_usd,
        usd_per_useful_h=bill.usd_per_useful_hour,
        interval=_find_interval(rates.spot, calm_h, wasted_h / useful_h, bill.evictions),
        flex_usd_per_useful_h=flex_usd,
        on_demand_usd_per_useful_h=rates.on_demand * calm_h,
        evictions=bill.evictions,
        per_node_h=bill.evictions / paid_h,
        flip_per_node_h=find_flip(ledgers, bill, rates),
        break_even_share=rates.spot / rates.on_demand / calm_h,
    )


def _find_interval(
    usd: float, calm_h: float, wasted_h: float, evictions: int
) -> tuple[float, float]:
    """Returns the 90 % interval of the price of a useful hour.

    The waste follows the number of evictions, which is a Poisson count; the rest is taken as it
    was.
    """
    if evictions == 0:
        return usd * calm_h, math.inf
    low, high = Exposure(events=evictions, hours=1.0).interval(CONFIDENCE)
    low_usd = usd * (calm_h + wasted_h * low / evictions)
    high_usd = usd * (calm_h + wasted_h * high / evictions)
    return low_usd, high_usd


def find_flip(ledgers: Sequence[JobLedger], bill: Receipt, rates: Prices) -> float:
    """Returns the evictions a running node-hour at which Spot costs as much as its cheaper rival.

    Restarts and saves cost what was measured in these ledgers.
    """
    restart_h = _find_mean_restart_h(ledgers)
    saves = 0
    saving_us = 0
    for ledger in ledgers:
        saves += len(ledger.commits_us)
        saving_us += ledger.totals_us[State.CHECKPOINTING]
    _, rival_usd = rates.rival
    ratio = rates.spot / rival_usd
    if saves:
        checkpoint_h = max(saving_us / 3.6e9 / saves, 1e-6)
        return closed_forms.break_even_churn(ratio, checkpoint_h=checkpoint_h, restart_h=restart_h)
    # A queue: an eviction costs the restart, and the work that it wasted.
    wasted_h = 0.0
    if bill.evictions:
        wasted_h = bill.wasted_usd / rates.spot / bill.evictions
    return closed_forms.break_even(
        ratio,
        lambda churn: closed_forms.batch_slowdown(
            churn=churn,
            restart_h=max(restart_h, wasted_h),
            item_batch_h=0.0,
        ),
    )


def _find_mean_restart_h(ledgers: Sequence[JobLedger]) -> float:
    restarts_s: list[float] = []
    for ledger in ledgers:
        for recovery in ledger.recoveries:
            if recovery.seconds is not None:
                restarts_s.append(recovery.seconds)
    if not restarts_s:
        return 0.0
    return sum(restarts_s) / len(restarts_s) / HOUR_S


def break_even_share(pools: Iterable[Pool], region: str) -> float | None:
    """Returns the share of useful time below which some Spot pool costs more than on-demand.

    It is that of the pool whose Spot price is the largest part of its on-demand price; None without
    prices. The metric has no label for the capacity, so this one threshold may fire early for other
    GPUs, never late.
    """
    table = prices.load()
    shares: list[float] = []
    for pool in pools:
        machine = MACHINE_TYPES.get(pool.machine_type)
        if pool.capacity is not Capacity.SPOT or machine is None or not machine.accelerator:
            continue
        spot = table.quote(machine, region, Capacity.SPOT)
        on_demand = table.quote(machine, region, Capacity.ON_DEMAND)
        if spot and on_demand:
            shares.append(spot.usd / on_demand.usd)
    return round(max(shares), 2) if shares else None


def usd_by_pool(pools: Iterable[Pool], region: str) -> tuple[tuple[str, float], ...]:
    """Returns the price of an hour of one node, for each pool whose machine has a price."""
    table = prices.load()
    rows: list[tuple[str, float]] = []
    for pool in pools:
        if pool.own_usd_per_hour is not None:
            rows.append((pool.name, pool.own_usd_per_hour))
            continue
        machine = MACHINE_TYPES.get(pool.machine_type)
        if machine is None or not machine.accelerator:
            continue
        capacity = pool.capacity.product
        quote = table.quote(machine, region, capacity)
        if quote:
            rows.append((pool.name, round(quote.usd, 4)))
    return tuple(rows)
