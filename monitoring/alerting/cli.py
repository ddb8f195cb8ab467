"""Bodies of `python -m monitoring alerts` and `fire`."""

import json
import sys
from dataclasses import asdict
from typing import Any

from holdfast.contract.exit_codes import EXIT_DONE, EXIT_FINDINGS
from monitoring.alerting import rule_test, runbook
from monitoring.alerting.alerts import alerts
from monitoring.alerting.rule_cases import LIMITS


def show_alerts(*, write: bool, as_json: bool) -> None:
    known = alerts(LIMITS)
    if write:
        runbook.PATH.write_text(runbook.with_table(runbook.PATH.read_text(), known))
        print(f"wrote {runbook.PATH}", file=sys.stderr)
    if as_json:
        print(json.dumps({"schema": "holdfast.alerts/1", "alerts": [asdict(a) | {"slug": a.slug} for a in known]}))
    elif not write:
        print(runbook.table(known))


def show_fire(name: str, *, as_json: bool) -> int:
    """0 if the alert fires on its bad histories and on no good one."""
    alert = rule_test.find(name)
    outcomes = rule_test.play(alert)
    if as_json:
        print(json.dumps({"schema": "holdfast.fire/1", "alert": alert.name, "histories": [_row(o) for o in outcomes]}))
    else:
        print(f"{alert.name} [{alert.severity.value}] {alert.query}")
        for outcome in outcomes:
            print(_line(outcome))
    return EXIT_DONE if all(o.held for o in outcomes) else EXIT_FINDINGS


def _row(outcome: rule_test.Outcome) -> dict[str, Any]:
    return asdict(outcome.history) | {"held": outcome.held}


def _line(outcome: rule_test.Outcome) -> str:
    history = outcome.history
    labels = [", ".join(f"{key}={value}" for key, value in fired) for fired in history.fires]
    said = f"fires by minute {history.at_min}: {'; '.join(labels)}" if labels else f"silent at minute {history.at_min}"
    return f"  {'held  ' if outcome.held else 'BROKEN'} {said}" + ("" if outcome.held else f"\n{outcome.output}")
