"""The answer of the place command as one JSON object, and the facts that its text names too."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast.contract.capacity import Capacity
from holdfast.contract.values import finite
from holdfast.place import emit, hours, weeks
from holdfast.place.advice import quote
from holdfast.place.ask import Answer
from holdfast.place.belief import Option, World
from holdfast.place.choose import granted
from holdfast.place.job import Job
from holdfast.place.prices import CAPACITIES, Band


def body(job: Job, answer: Answer, google: list[str] | None, written: list[Path]) -> dict[str, Any]:
    limits = answer.limits
    return {
        "schema": "holdfast.place/1",
        "region": answer.region,
        "machine": job.machine.name,
        "nodes": job.nodes,
        "chosen": answer.chosen.placement.value,
        "reason": answer.reason,
        "options": [_option_json(job, answer.world, option) for option in answer.options],
        "as_elastic": [_option_json(job, answer.world, option) for option in answer.as_elastic],
        "flip": None
        if limits is None
        else {
            "against": limits.against.value,
            # JSON has no infinity: a limit that is never reached is null.
            "churn_per_hour": finite(limits.churn_per_hour),
            "restart_seconds": finite(limits.restart_h * 3600),
            "checkpoint_seconds": finite(limits.checkpoint_h * 3600),
        },
        "spot_by_hour_utc": (found := rhythm(job)) and list(found.shares),
        "churn": {"per_hour": answer.world.churn.per_hour, "basis": answer.world.churn.basis},
        "checkpoint": emit.checkpoint(job, answer.world),
        "prices": {
            "fetched_at": answer.world.prices.fetched_at.isoformat(),
            "as_of": price_dates(job, answer),
            "spot_usd_per_hour": _spot_range_json(job, answer),
            "spot_drift": (drift := answer.world.prices.spot_drift(job.accelerator)) and asdict(drift),
            "note": answer.world.prices.note(job.accelerator, answer.region),
        },
        "tie": None if answer.tie is None else {"placement": answer.tie.placement.value, "how": answer.tie.policy},
        "regret": answer.regret,
        "late_assumes": f"on-demand is {granted(answer.world)} when asked for",
        "on_demand_refused": {
            "probability": answer.world.on_demand_refused,
            "source": "--on-demand-refused" if answer.world.on_demand_refused else "assumed",
        },
        "emitted": emit.carried_out(job, answer.chosen, answer.emitted),
        "data": {"in": answer.data_in, "move_usd": answer.move.usd, "move_hours": answer.move.hours}
        if answer.data_in
        else None,
        "committed": answer.committed
        and {
            "usd": answer.committed.usd(job),
            "terms": answer.committed.terms(job),
            "term_hours": answer.committed.term_h,
            "even_hours": answer.committed.even_h(job, answer.chosen),
        },
        "elsewhere": [{"region": r, "placement": p, "mean_usd": usd} for r, p, usd in answer.elsewhere],
        "google": google,
        "written": [str(path) for path in written],
    }


def _option_json(job: Job, world: World, option: Option) -> dict[str, Any]:
    head = {
        "placement": option.placement.value,
        "how": option.policy,
        "carried_out_by": option.carried_out_by,
        "refused": option.refused or None,
    }
    if option.refused:
        return head
    return head | {
        "usd_per_hour": option.usd_per_hour,
        "usd": {f"p{p}": option.usd_at(p) for p in (5, 50, 95)}
        | {"mean": option.mean_usd, "mean_interval": list(option.usd_interval)}
        | {"mean_range": option.usd_range and list(option.usd_range)},
        "finish_hours": {f"p{p}": option.finish_at(p) for p in (5, 50, 95)},
        "late": option.late,
        # An interval is of other starts in the same weeks; a range is of weeks, where they are what is in doubt.
        "late_interval": option.late_interval and list(option.late_interval),
        "late_range": option.late_range and list(option.late_range),
        "late_range_basis": f"least and most of {weeks.basis(world)}" if option.late_range else None,
        "evictions": option.evictions,
        "price_inferred": option.inferred,
        "usd_per_1000_items": per_1000(job, option) if job.items else None,
    }


def rhythm(job: Job) -> hours.Rhythm | None:
    return hours.rhythm(job.accelerator, 1 if job.batch else job.nodes)


def per_1000(job: Job, option: Option) -> float:
    """USD for 1,000 items."""
    return option.mean_usd / job.items * 1_000


def price_dates(job: Job, answer: Answer) -> dict[str, str | None]:
    """Of the capacities of the table; null where a part of the price has no date."""
    quotes = {c: quote(job, answer.world, answer.region, c) for c in CAPACITIES}
    return {c.value: found.as_of or None for c, found in quotes.items() if found}


def spot_range(job: Job, answer: Answer) -> tuple[float, float, Band] | None:
    """USD an hour for the whole job."""
    machine, prices = job.machine_for(Capacity.SPOT), answer.world.prices
    band = prices.spot_band(machine) if machine else None
    demand = prices.quote(machine, answer.region, Capacity.ON_DEMAND) if machine else None
    if machine is None or band is None or demand is None:
        return None
    usd = demand.usd * job.gpus / machine.gpus
    return usd * band.low, usd * band.high, band


def _spot_range_json(job: Job, answer: Answer) -> dict[str, Any] | None:
    found = spot_range(job, answer)
    return found and {"low": found[0], "high": found[1], "basis": str(found[2])}
