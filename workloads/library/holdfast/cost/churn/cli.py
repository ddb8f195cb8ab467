"""Implements `place churn`: from event files, or from the exporter's Cloud Monitoring series."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.cost.churn import estimate
from holdfast.cost.churn.estimate import Ages, Exposure, Group
from holdfast.ledger.events import read_folder
from holdfast.support.errors import InputError, Unjudged
from holdfast.support.progress import working
from holdfast.support.values import duration, finite


def show_churn(
    events: Path | None,
    project: str,
    since: str,
    *,
    as_json: bool,
    cluster: str = "",
) -> None:
    if (events is None) == (not project):
        raise InputError(
            "churn has one source",
            got="both" if project else "neither",
            allowed="--events or --project",
            fix="give one of them",
        )
    if not project and cluster:
        raise InputError(
            "events know no cluster",
            got="--cluster with --events",
            allowed="--project",
            fix="leave it out",
        )
    if events is None:
        _show_cloud(project, cluster, duration("--since", since or "30d"), as_json=as_json)
        return
    reading = read_folder(events)
    # The newest event is the end: in a copied folder, no node was watched after it.
    times_us = [event.t_us for event in reading.events]
    end_us = max(times_us, default=round(time.time() * 1e6))
    lifetimes = estimate.lifetimes(reading.events, end_us)
    if not lifetimes:
        raise Unjudged(f"no node_up or node_down line under {events}: the node watcher writes them")
    show(
        estimate.by_group(lifetimes),
        estimate.by_age(lifetimes),
        {"problems": dict(reading.problems)},
        as_json=as_json,
    )


def _show_cloud(project: str, cluster: str, since_s: float, *, as_json: bool) -> None:
    """Shows the churn of all clusters together, and prints which they are.

    They are added up because churn follows pool, machine type and zone.
    """
    from holdfast.cost.churn import cloud_series

    reader = cloud_series.cloud_reader(project, cluster)
    with working("read Cloud Monitoring"):
        churn = reader.measure(time.time(), since_s)
    if len(churn.clusters) > 1:
        names = ", ".join(churn.clusters)
        print(f"added up: {names}; --cluster NAME shows one of them", file=sys.stderr)
    show(churn.groups, churn.ages, {"clusters": churn.clusters}, as_json=as_json)


def show(
    groups: Mapping[Group, Exposure],
    ages: Ages,
    details: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Prints the churn by group and by age; the JSON also has `details`."""
    if as_json:
        output = _make_json(groups, ages) | dict(details)
        print(json.dumps(output))
        return
    for group, exposure in groups.items():
        name = f"{group.pool} {group.machine_type} {group.zone}"
        print(f"{name}: {_describe(exposure)}")
    for low, high, exposure in ages:
        print(f"age {low:g} to {high:g} h: {_describe(exposure)}")


def _make_json(groups: Mapping[Group, Exposure], ages: Ages) -> dict[str, object]:
    bands: list[dict[str, object]] = []
    for low, high, exposure in ages:
        bands.append({"from_h": low, "to_h": finite(high)} | _rate(exposure))
    return {
        "schema": "holdfast.churn/1",
        "groups": [_row(group, exposure) for group, exposure in groups.items()],
        "ages": bands,
    }


def _row(group: Group, exposure: Exposure) -> dict[str, object]:
    return {
        "pool": group.pool,
        "machine_type": group.machine_type,
        "zone": group.zone,
    } | _rate(exposure)


def _rate(exposure: Exposure) -> dict[str, object]:
    low, high = exposure.interval()
    return {
        "events": exposure.events,
        "node_hours": exposure.hours,
        "per_hour": exposure.per_hour,
        "low": low,
        "high": finite(high),
    }


def _describe(exposure: Exposure) -> str:
    if exposure.per_hour is None:
        return "not watched yet"
    low, high = exposure.interval()
    return (
        f"{exposure.per_hour:.4f} an hour (90 %: {low:.4f} to {high:.4f}; {exposure.events:.1f} in"
        f" {exposure.hours:.1f} node-hours)"
    )
