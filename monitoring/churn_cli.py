"""Body of `python -m monitoring churn`."""

import json
import math
import time
from pathlib import Path

from infra.contract.errors import Unjudged
from monitoring import churn
from monitoring.churn import Exposure, Group
from monitoring.events import read_folder

DAY_H = 24.0


def show_churn(events: Path, half_life_days: float, *, as_json: bool) -> None:
    reading = read_folder(events)
    now_us = max((e.t_us for e in reading.events), default=round(time.time() * 1e6))
    found = churn.lives(reading.events, now_us)
    if not found:
        raise Unjudged(f"no node_up or node_down line under {events}: the node watcher writes them")
    groups = churn.by_group(found, now_us, half_life_days * DAY_H)
    ages = churn.by_age(found)
    if as_json:
        rows = [_row(group, exposure) for group, exposure in groups.items()]
        bands = [{"from_h": low, "to_h": _finite(high)} | _rate(exposure) for low, high, exposure in ages]
        print(
            json.dumps(
                {"schema": "holdfast.churn/1", "groups": rows, "ages": bands, "problems": dict(reading.problems)}
            )
        )
        return
    for group, exposure in groups.items():
        print(f"{group.pool} {group.machine_type} {group.zone}: {_words(exposure)}")
    for low, high, exposure in ages:
        print(f"age {low:g} to {high:g} h: {_words(exposure)}")


def _row(group: Group, exposure: Exposure) -> dict[str, object]:
    return {"pool": group.pool, "machine_type": group.machine_type, "zone": group.zone} | _rate(exposure)


def _rate(exposure: Exposure) -> dict[str, object]:
    low, high = exposure.interval()
    return {
        "events": exposure.events,
        "node_hours": exposure.hours,
        "per_hour": exposure.per_hour,
        "low": low,
        "high": _finite(high),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _words(exposure: Exposure) -> str:
    if exposure.per_hour is None:
        return "nobody has watched yet"
    low, high = exposure.interval()
    return f"{exposure.per_hour:.4f} an hour (90 %: {low:.4f} to {high:.4f}; {exposure.events:.1f} in {exposure.hours:.1f} node-hours)"
