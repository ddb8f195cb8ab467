"""A record as JSON with the keys of Chaos Toolkit's journal, so that its reporters read it; ours stand beside.

Written once when a drill has ended; read again to compare the next run with this one.
"""

import platform
from dataclasses import asdict
from typing import Any

from holdfast.contract.values import rfc3339
from workloads.drill.plan import Bound, Drill, Operator
from workloads.drill.record import Activity, Record
from workloads.drill.verdict import Word

SCHEMA = "holdfast.drill/1"
CHAOSLIB = "1.44.0"  # whose journal this is; its reporters parse the number and choose a template by it


_ANY = 1e300  # JSON knows no infinity


def journal(record: Record) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "chaoslib-version": CHAOSLIB,
        "platform": platform.platform(),
        "node": platform.node(),
        "experiment": experiment(record.drill),
        "start": rfc3339(record.started),
        "status": _status(record),
        "deviated": record.deviated,
        "steady_states": {
            "before": _state(record.before),
            "after": _state(record.after),
            "during": [_state(record.during)] if record.during else [],
        },
        "run": [_activity(each) for each in record.run],
        "rollbacks": [_activity(each) for each in record.rollbacks],
        "end": rfc3339(record.ended),
        "duration": round(record.seconds, 3),
        "verdict": record.word.value,
        "fail_step": record.fail_step,
        "why": record.why,
        "objectives": [
            {
                "promise": result.objective.promise,
                "metric": result.objective.bound.metric,
                "wanted": str(result.objective.bound),
                "essential": result.objective.essential,
                "measured": result.measured,
                "last": result.last,
                "verdict": result.word.value,
            }
            for result in record.results
        ],
        "timeline": [{"t": rfc3339(t), "step": step, "what": what} for t, step, what in record.timeline],
    }


def experiment(drill: Drill) -> dict[str, Any]:
    """The drill in Chaos Toolkit's terms, and whole."""
    state, bound = drill.steady_state, drill.steady_state.bound
    return {
        "version": "1.0.0",
        "title": drill.question,
        "description": f"{drill.name}: {drill.fault.value} on {drill.blast}",
        "tags": [drill.place.value, drill.work.value],
        "steady-state-hypothesis": {
            "title": str(bound),
            "probes": [_part("probe", bound.metric) | {"tolerance": _tolerance(bound), "within_s": state.within_s}],
        },
        "method": [_part("action", drill.fault.value)],
        "rollbacks": [_part("action", drill.rollback)],
        "extensions": [{"name": "holdfast", "drill": asdict(drill)}],
    }


def _part(kind: str, name: str) -> dict[str, Any]:
    """An activity. Reporters want its provider: what plays it again, though not alone."""
    return {"type": kind, "name": name, "provider": {"type": "process", "path": "make", "arguments": "drill"}}


def _tolerance(bound: Bound) -> dict[str, Any] | float:
    if bound.operator is Operator.EQUAL:
        return bound.value
    least, most = (bound.value, _ANY) if bound.operator is Operator.AT_LEAST else (-_ANY, bound.value)
    return {"type": "range", "range": [least, most]}


def last_numbers(journal_: dict[str, Any]) -> dict[str, float | None]:
    """Promise -> number, of an earlier journal."""
    return {each["promise"]: each["measured"] for each in journal_.get("objectives", ())}


def _status(record: Record) -> str:
    """Chaos Toolkit knows completed, failed, aborted and interrupted."""
    if record.signal:
        return "interrupted"
    if record.stopped:
        return "aborted"
    return "failed" if record.word in (Word.BROKEN, Word.INCONCLUSIVE) else "completed"


def _state(looks: list[Activity]) -> dict[str, Any] | None:
    if not looks:
        return None
    return {
        "steady_state_met": all(look.tolerance_met is not False for look in looks),
        "probes": [_activity(look) | {"tolerance_met": look.tolerance_met} for look in looks],
    }


def _activity(each: Activity) -> dict[str, Any]:
    return {
        "activity": _part(each.kind, each.name),
        "status": "succeeded" if each.succeeded else "failed",
        "output": each.output,
        "start": rfc3339(each.start),
        "end": rfc3339(each.end),
        "duration": round(max(0.0, each.end - each.start), 3),
    }
