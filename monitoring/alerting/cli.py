"""Body of `python -m monitoring alerts`."""

import json
import sys
from dataclasses import asdict

from monitoring.alerting import runbook
from monitoring.alerting.alert import EXAMPLE
from monitoring.alerting.alerts import alerts


def show_alerts(*, write: bool, as_json: bool) -> None:
    known = alerts(EXAMPLE)
    if write:
        runbook.PATH.write_text(runbook.with_table(runbook.PATH.read_text(), known))
        print(f"wrote {runbook.PATH}", file=sys.stderr)
    if as_json:
        print(json.dumps({"schema": "holdfast.alerts/1", "alerts": [asdict(a) | {"slug": a.slug} for a in known]}))
    elif not write:
        print(runbook.table(known))
