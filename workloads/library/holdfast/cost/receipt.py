"""The receipt of a job: what was paid, what evictions wasted of it, what on-demand would have cost.

The line goes to the log, the JSON to programs that add it up, the annotation onto the JobSet or
Job. Prices are given, never guessed.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.clients.api import Api, ApiError
from holdfast.ledger.account import UNPAID, JobLedger
from holdfast.ledger.timeline import STATES, Span, State
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.kubernetes import JOB_API, JOBSET_API, api_path
from holdfast.vocabulary.roles import DEFAULT_TEAM

SCHEMA = "holdfast.receipt/1"
ANNOTATION = "holdfast.dev/receipt"
HTTP_NOT_FOUND = 404
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
    """The same useful hours on machines that are not preempted."""
    usd_per_useful_hour: float | None
    largest_loss_s: float
    moves: int = 0
    """Times that it was sent to another capacity."""
    from_memory: int = 0
    """Restarts of a sharded gang from the memory of its nodes."""
    from_store: int = 0
    missing_node_hours: float = 0.0
    """Of an elastic gang's places without a node while the others worked: not billed, and work not
    done.
    """
    missing_usd: float = 0.0
    """What those hours cost where they are made up, at the price paid."""
    team: str = DEFAULT_TEAM
    """Of the job's namespace."""

    def line(self) -> str:
        if self.usd_per_useful_hour is None:
            rate = "no useful hour"
        else:
            rate = f"${self.usd_per_useful_hour:.2f} per useful hour"
        return (
            f"{self.job}: paid ${self.paid_usd:.2f} ({rate}), ${self.wasted_usd:.2f} of it wasted"
            f" by {self.evictions} evictions; on demand ${self.on_demand_usd:.2f}; largest loss"
            f" {self.largest_loss_s:.0f} s"
            + (f"; moved {self.moves} times" if self.moves else "")
            + (
                f"; restarted {self.from_memory} times from memory, {self.from_store} from the"
                " bucket"
                if self.from_memory
                else ""
            )
            + self._missing()
        )

    def _missing(self) -> str:
        if not self.missing_node_hours:
            return ""
        return (
            f"; {self.missing_node_hours:.1f} node-hours missing, ${self.missing_usd:.2f} to"
            " make up"
        )

    def as_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self)


PLACES = (
    api_path(JOBSET_API) + "/namespaces/{}/jobsets/{}",
    api_path(JOB_API) + "/namespaces/{}/jobs/{}",
)


def leave(made: Receipt, namespace: str, api: Api) -> str:
    """Writes the receipt onto the JobSet of that name, or onto the Job; returns which."""
    body = {"metadata": {"annotations": {ANNOTATION: json.dumps(made.as_json())}}}
    for place in PLACES:
        path = place.format(namespace, made.job)
        try:
            api.merge(path, body)
            return path
        except ApiError as error:
            if error.status != HTTP_NOT_FOUND:
                raise Unjudged(f"{path}: {error}") from error
    raise InputError(
        "no object to annotate with the receipt",
        got=f"{namespace}/{made.job}",
        allowed="a JobSet or Job",
        fix="keep the job until then",
    )


def receipt(
    runs: Sequence[JobLedger],
    usd_per_hour: float,
    on_demand_usd_per_hour: float,
    watched_h: float | None = None,
) -> Receipt:
    """`runs`: of one job, at least one; prices are those of one lane. `watched_h`: hours of its
    lanes on machines, where the exporter watched; the time beyond them that no line explains was a
    wait, in a queue or for a node.
    """
    hours = {state: sum(run.totals_us[state] for run in runs) / 3.6e9 for state in STATES}
    accounted_h = sum(h for state, h in hours.items() if state not in UNPAID)
    paid_h = accounted_h if watched_h is None else watched_h
    away_h = max(0.0, accounted_h - paid_h)
    # A first start is no waste: an undisturbed run has it too.
    first_start_h = sum(s.length_us for run in runs for s in _first_starts(run)) / 3.6e9
    wasted_h = max(0.0, sum(hours[state] for state in WASTED) - first_start_h - away_h)
    useful_h = hours[State.PRODUCTIVE]
    return Receipt(
        job=runs[0].job,
        evictions=sum(len(run.recoveries) for run in runs),
        machine_hours=paid_h,
        useful_hours=useful_h,
        waited_hours=hours[State.WAITING] + away_h,
        paid_usd=paid_h * usd_per_hour,
        wasted_usd=wasted_h * usd_per_hour,
        on_demand_usd=(paid_h - wasted_h) * on_demand_usd_per_hour,
        usd_per_useful_hour=paid_h * usd_per_hour / useful_h if useful_h else None,
        largest_loss_s=max(
            (s.length_us for run in runs for s in run.spans if s.state is State.LOST), default=0
        )
        / 1e6,
        moves=sum(run.moves for run in runs),
        from_memory=sum(each.from_memory for run in runs for each in run.restarts),
        from_store=sum(not each.from_memory for run in runs for each in run.restarts),
        missing_node_hours=hours[State.DEGRADED],
        missing_usd=hours[State.DEGRADED] * usd_per_hour,
    )


def _first_starts(found: JobLedger) -> list[Span]:
    """Restarting and restoring before a lane's first work."""
    begun: set[int] = set()
    spans: list[Span] = []
    for span in found.spans:
        if span.state in (State.PRODUCTIVE, State.LOST):
            begun.add(span.lane)
        elif span.lane not in begun and span.state in WASTED:
            spans.append(span)
    return spans
