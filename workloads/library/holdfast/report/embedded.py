"""The data that a page carries: the JSON of the report, its long lists cut. Pure.

Guarantee: `totals` are those of the whole; `left_out` counts what only `--json` prints, and is there only if something is.
"""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from holdfast.report.bounds import MOST_EVICTIONS, MOST_ROWS, MOST_STEPS, cut
from holdfast.report.model import Report

MOST_LOSSES = 400
Row = dict[str, Any]


def embedded(report: Report) -> str:
    """JSON that cannot end the script element it stands in."""
    # A job may be named `</script>`. Escaped as JSON, it is the same text to every reader of the data.
    return json.dumps(page_data(report), sort_keys=True).replace("<", "\\u003c")


def page_data(report: Report) -> Row:
    # as_json builds anew, so cutting here leaves the report, and what --json prints, whole.
    data, left = report.as_json(), Counter[str]()
    _keep(data, "jobs", MOST_ROWS, _unused, left)
    _keep_recoveries(data["jobs"], left)
    _keep(data, "next_steps", MOST_STEPS, lambda _: 0, left)
    for capacity in data["capacity"]:
        _keep(capacity, "preemptions", MOST_LOSSES, lambda row: row["count"], left)
        _keep(capacity, "churn", MOST_ROWS, lambda row: row["events"], left)
        _keep(capacity, "waits", MOST_ROWS, lambda row: row["n"], left)
        _keep(capacity, "useful_time", MOST_ROWS, lambda row: -row["newest"], left)
        _keep(capacity, "saves", MOST_ROWS, lambda row: row["blocked_s"], left)
    return data | ({"left_out": dict(left)} if left else {})


def _keep(holder: Row, name: str, most: int, weight: Callable[[Any], float], left: Counter[str]) -> None:
    holder[name], rest = cut(holder[name], most, weight)
    if rest:
        left[name] += len(rest)


def _keep_recoveries(jobs: list[Row], left: Counter[str]) -> None:
    """Those that took longest, whichever job they are of. A job that was left out took its own along."""
    pairs = [(row["job"], row["kind"], r) for row in jobs for r in row["recoveries"]]
    found = cut(pairs, MOST_EVICTIONS, lambda pair: _delay(pair[2]))
    for row in jobs:
        # Training and batch may share the name of a run.
        row["recoveries"] = [r for job, kind, r in found.rows if (job, kind) == (row["job"], row["kind"])]
    if found.rest:
        left["recoveries"] += len(found.rest)


def _unused(row: Row) -> float:
    return row["seconds"] * row["lanes"] - row["states_seconds"]["productive"]


def _delay(recovery: Row) -> float:
    # An eviction that nothing came back from is worse than the slowest that something did.
    return float("inf") if recovery["seconds"] is None else recovery["seconds"]
