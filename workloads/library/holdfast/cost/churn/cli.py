"""Body of `holdfast churn`: from event files, or from what the exporter wrote to Cloud Monitoring."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.cost.churn import estimate
from holdfast.cost.churn.estimate import Ages, Exposure, Group, span_seconds
from holdfast.ledger.events import read_folder
from holdfast.support.errors import InputError, Unjudged
from holdfast.support.values import finite


def show_churn(
    events: Path | None,
    project: str,
    since: str,
    *,
    as_json: bool,
    cluster: str = "",
) -> None:
    if (events is None) == (not project):
        got = "both" if project else "neither"
        raise InputError(
            "churn has one source",
            got=got,
            allowed="--events or --project",
            fix="give one of them",
        )
    if not project and cluster:
        got = "--cluster with --events"
        raise InputError(
            "events know no cluster",
            got=got,
            allowed="--project",
            fix="leave it out",
        )
    if events is None:
        _show_cloud(project, cluster, span_seconds(since or "30d"), as_json=as_json)
        return
    reading = read_folder(events)
    # To the newest event, not to now: in a copied folder no node was watched after it.
    now_us = max((e.t_us for e in reading.events), default=round(time.time() * 1e6))
    found = estimate.lifetimes(reading.events, now_us)
    if not found:
        raise Unjudged(f"no node_up or node_down line under {events}: the node watcher writes them")
    show(
        estimate.by_group(found),
        estimate.by_age(found),
        {"problems": dict(reading.problems)},
        as_json=as_json,
    )


def _show_cloud(project: str, cluster: str, since_s: float, *, as_json: bool) -> None:
    """Clusters are added up, as churn follows pool, machine type and zone; which ones is printed."""
    from holdfast.cost.churn import cloud_series

    found = cloud_series.cloud_reader(project, cluster).measured(time.time(), since_s)
    if len(found.clusters) > 1:
        print(
            f"added up: {', '.join(found.clusters)}; --cluster NAME shows one of them",
            file=sys.stderr,
        )
    show(found.groups, found.ages, {"clusters": found.clusters}, as_json=as_json)


def show(
    groups: Mapping[Group, Exposure],
    ages: Ages,
    more: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    if as_json:
        rows = [_row(group, exposure) for group, exposure in groups.items()]
        bands = [
            {
                "from_h": low,
                "to_h": finite(high),
            }
            | _rate(exposure)
            for low, high, exposure in ages
        ]
        print(
            json.dumps(
                {
                    "schema": "holdfast.churn/1",
                    "groups": rows,
                    "ages": bands,
                }
                | dict(more)
            )
        )
        return
    for group, exposure in groups.items():
        print(f"{group.pool} {group.machine_type} {group.zone}: {_words(exposure)}")
    for low, high, exposure in ages:
        print(f"age {low:g} to {high:g} h: {_words(exposure)}")


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


def _words(exposure: Exposure) -> str:
    if exposure.per_hour is None:
        return "not watched yet"
    low, high = exposure.interval()
    return (
        f"{exposure.per_hour:.4f} an hour (90 %: {low:.4f} to {high:.4f}; {exposure.events:.1f} in"
        f" {exposure.hours:.1f} node-hours)"
    )
