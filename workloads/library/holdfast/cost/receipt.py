"""Makes the receipt of a job: what was paid and wasted, and what on-demand would have cost.

The line goes to the log, the JSON to programs that add it up, the annotation onto the JobSet or
Job. Prices come from the caller, and are never guessed.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.clients.api import Api, ApiError
from holdfast.ledger.account import UNPAID, JobLedger, Restart
from holdfast.ledger.timeline import STATES, State
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.capacity import ANNOTATION_RECEIPT
from holdfast.vocabulary.kubernetes import JOB_API, JOBSET_API, api_path
from holdfast.vocabulary.roles import DEFAULT_TEAM

SCHEMA = "holdfast.receipt/1"
ANNOTATION = ANNOTATION_RECEIPT
HTTP_NOT_FOUND = 404
HOUR_US = 3.6e9
WASTED = frozenset({State.LOST, State.RESTARTING, State.RESTORING})


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    job: str
    evictions: int
    machine_hours: float
    useful_hours: float
    waited_hours: float
    paid_usd: float
    wasted_usd: float
    on_demand_usd: float
    """Price of the same useful hours on machines that are not preempted."""
    usd_per_useful_hour: float | None
    largest_loss_s: float
    moves: int = 0
    """Number of moves to another capacity."""
    from_memory: int = 0
    """Restarts of a sharded gang from the memory of its nodes."""
    from_store: int = 0
    missing_node_hours: float = 0.0
    """Hours in which places of an elastic gang had no node while the others worked: not billed, and
    work not done.
    """
    missing_usd: float = 0.0
    """Price of making up those hours, at the price paid."""
    team: str = DEFAULT_TEAM
    """Team of the job's namespace."""
    source: str = ""
    """Digest of the job's code; empty if its image has the code."""

    def line(self) -> str:
        rate = "no useful hour"
        if self.usd_per_useful_hour is not None:
            rate = f"${self.usd_per_useful_hour:.2f} per useful hour"
        parts = [
            f"{self.job}: paid ${self.paid_usd:.2f} ({rate}), ${self.wasted_usd:.2f} of it wasted"
            f" by {self.evictions} evictions",
            f"on demand ${self.on_demand_usd:.2f}",
            f"largest loss {self.largest_loss_s:.0f} s",
        ]
        if self.moves:
            parts.append(f"moved {self.moves} times")
        if self.from_memory:
            parts.append(
                f"restarted {self.from_memory} times from memory, {self.from_store} from the bucket"
            )
        if self.missing_node_hours:
            parts.append(
                f"{self.missing_node_hours:.1f} node-hours missing, ${self.missing_usd:.2f} to"
                " make up"
            )
        if self.source:
            parts.append(f"source {self.source}")
        return "; ".join(parts)

    def as_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self)


PATHS = (
    api_path(JOBSET_API) + "/namespaces/{}/jobsets/{}",
    api_path(JOB_API) + "/namespaces/{}/jobs/{}",
)


def leave(bill: Receipt, namespace: str, api: Api) -> str:
    """Writes the receipt onto the JobSet of that name, or onto the Job. Returns its path.

    Raises InputError if there is neither, Unjudged if the API server fails.
    """
    annotations = {ANNOTATION: json.dumps(bill.as_json())}
    change = {"metadata": {"annotations": annotations}}
    for template in PATHS:
        path = template.format(namespace, bill.job)
        try:
            api.merge(path, change)
            return path
        except ApiError as error:
            if error.status != HTTP_NOT_FOUND:
                raise Unjudged(f"{path}: {error}") from error
    raise InputError(
        "no object to annotate with the receipt",
        got=f"{namespace}/{bill.job}",
        allowed="a JobSet or Job",
        fix="keep the job until then",
    )


def receipt(
    runs: Sequence[JobLedger],
    usd_per_hour: float,
    on_demand_usd_per_hour: float,
    watched_h: float | None = None,
) -> Receipt:
    """Makes the receipt of a job.

    `runs` are those of one job, at least one; prices are those of one lane. `watched_h` are the
    hours of its lanes on machines, if the exporter watched. The unexplained time beyond them was a
    wait, in a queue or for a node.
    """
    hours = _sum_hours(runs)
    accounted_h = sum(hours[state] for state in STATES if state not in UNPAID)
    paid_h = accounted_h if watched_h is None else watched_h
    waited_h = max(0.0, accounted_h - paid_h)
    wasted_h = _sum_waste_h(runs, hours) - waited_h
    wasted_h = max(0.0, wasted_h)
    useful_h = hours[State.PRODUCTIVE]
    missing_h = hours[State.DEGRADED]
    evictions = 0
    moves = 0
    for run in runs:
        evictions += len(run.recoveries)
        moves += run.moves
    restarts = _list_restarts(runs)
    from_memory = sum(restart.from_memory for restart in restarts)
    return Receipt(
        job=runs[0].job,
        evictions=evictions,
        machine_hours=paid_h,
        useful_hours=useful_h,
        waited_hours=hours[State.WAITING] + waited_h,
        paid_usd=paid_h * usd_per_hour,
        wasted_usd=wasted_h * usd_per_hour,
        on_demand_usd=(paid_h - wasted_h) * on_demand_usd_per_hour,
        usd_per_useful_hour=paid_h * usd_per_hour / useful_h if useful_h else None,
        largest_loss_s=_find_largest_loss_us(runs) / 1e6,
        moves=moves,
        from_memory=from_memory,
        from_store=len(restarts) - from_memory,
        missing_node_hours=missing_h,
        missing_usd=missing_h * usd_per_hour,
    )


def _sum_hours(runs: Sequence[JobLedger]) -> dict[State, float]:
    hours: dict[State, float] = {}
    for state in STATES:
        total_us = sum(run.totals_us[state] for run in runs)
        hours[state] = total_us / HOUR_US
    return hours


def _sum_waste_h(runs: Sequence[JobLedger], hours: dict[State, float]) -> float:
    """Returns the hours in wasted states. A first start is no waste: every run has one."""
    first_start_us = 0
    for run in runs:
        first_start_us += _sum_first_starts_us(run)
    wasted_h = sum(hours[state] for state in WASTED)
    return wasted_h - first_start_us / HOUR_US


def _sum_first_starts_us(run: JobLedger) -> int:
    """Returns the time of restarting and restoring before the first work of each lane."""
    started: set[int] = set()
    total_us = 0
    for span in run.spans:
        if span.state in (State.PRODUCTIVE, State.LOST):
            started.add(span.lane)
        elif span.lane not in started and span.state in WASTED:
            total_us += span.length_us
    return total_us


def _find_largest_loss_us(runs: Sequence[JobLedger]) -> int:
    largest_us = 0
    for run in runs:
        for span in run.spans:
            if span.state is State.LOST:
                largest_us = max(largest_us, span.length_us)
    return largest_us


def _list_restarts(runs: Sequence[JobLedger]) -> list[Restart]:
    restarts: list[Restart] = []
    for run in runs:
        restarts += run.restarts
    return restarts
