"""A record as JSON: what a run of a drill leaves for the reports, and for the next run to compare with."""

from dataclasses import asdict
from typing import Any

from holdfast.contract.values import rfc3339
from holdfast.drill.record import Activity, Record

SCHEMA = "holdfast.drill/2"


def journal(record: Record) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "drill": asdict(record.drill),
        "start": rfc3339(record.started),
        "end": rfc3339(record.ended),
        "duration": round(record.seconds, 3),
        "verdict": record.verdict.value,
        "signal": record.signal,
        "deviated": record.deviated,
        "fail_step": record.fail_step,
        "why": record.why,
        "steady_states": {
            "before": _state(record.before),
            "during": _state(record.during),
            "after": _state(record.after),
        },
        "run": [_activity(each) for each in record.run],
        "rollbacks": [_activity(each) for each in record.rollbacks],
        "objectives": [
            {
                "promise": result.objective.promise,
                "metric": result.objective.bound.metric,
                "wanted": str(result.objective.bound),
                "essential": result.objective.essential,
                "measured": result.measured,
                "last": result.last,
                "verdict": result.verdict.value,
            }
            for result in record.results
        ],
        "timeline": [{"t": rfc3339(t), "step": step, "what": what} for t, step, what in record.timeline],
    }


def last_numbers(journal_: dict[str, Any]) -> dict[str, float | None]:
    """Promise -> number, of an earlier journal."""
    return {each["promise"]: each["measured"] for each in journal_.get("objectives", ())}


def _state(looks: list[Activity]) -> dict[str, Any] | None:
    """None: nobody looked."""
    if not looks:
        return None
    met = all(look.tolerance_met is not False for look in looks)
    return {"met": met, "probes": [_activity(look) for look in looks]}


def _activity(each: Activity) -> dict[str, Any]:
    return {
        "name": each.name,
        "succeeded": each.succeeded,
        "output": each.output,
        "start": rfc3339(each.start),
        "duration": round(max(0.0, each.end - each.start), 3),
    }
