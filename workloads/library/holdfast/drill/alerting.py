"""Would the alert have fired? The recorded losses, as Cloud Monitoring would show them, in Prometheus's own engine.

The rule comes from `python -m monitoring alerts`, so that what is judged is what is deployed. promtool is taken
from PATH or HOLDFAST_PROMTOOL; without it, and for alerts on other series, there is no answer.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.contract.kubernetes import INTERRUPTIONS_METRIC, PREEMPTION_TYPE
from holdfast.drill.target import Loss

_STEP_S = 15
_PROMTOOL_S = 60


def fires(alert: str, losses: Sequence[Loss]) -> float | None:
    """1 if it fires within a minute of the last loss, 0 if it stays silent, None if that is not known."""
    promtool = os.environ.get("HOLDFAST_PROMTOOL") or shutil.which("promtool")
    rule = _rule(alert) if promtool and losses else None
    if promtool is None or rule is None or INTERRUPTIONS_METRIC not in rule["expr"]:
        return None
    with tempfile.TemporaryDirectory(prefix="holdfast-alert-") as folder:
        rules, rule_test = Path(folder, "rules.json"), Path(folder, "trial.json")
        rules.write_text(json.dumps({"groups": [{"name": "drill", "rules": [rule]}]}))
        rule_test.write_text(json.dumps(rule_test_of(rule, losses)))  # JSON is YAML
        command = [promtool, "test", "rules", str(rule_test)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROMTOOL_S, check=False)
    return verdict_of(done.stdout + done.stderr, alert)


def rule_test_of(rule: dict[str, Any], losses: Sequence[Loss]) -> dict[str, Any]:
    """A promtool test that expects silence. One sample a machine lost, as the metric counts them."""
    cluster = re.search(r'cluster_name="([^"]+)"', rule["expr"])
    begin = min(loss.t for loss in losses)
    counts = Counter((loss.pool, int((loss.t - begin) // _STEP_S)) for loss in losses)
    last = max(tick for _, tick in counts)
    due_s = (last + 1) * _STEP_S + int(rule["for"].removesuffix("s")) + 60
    series = [
        {"series": _series(pool, cluster[1] if cluster else ""), "values": _values(pool, counts, last)}
        for pool in sorted({pool for pool, _ in counts})
    ]
    expected = {"eval_time": f"{due_s}s", "alertname": rule["alert"], "exp_alerts": []}
    case = {"interval": f"{_STEP_S}s", "input_series": series, "alert_rule_test": [expected]}
    return {"rule_files": ["rules.json"], "evaluation_interval": f"{_STEP_S}s", "tests": [case]}


def verdict_of(output: str, alert: str) -> float | None:
    """From promtool's output: it expected silence."""
    if "SUCCESS" in output and "FAILED" not in output:
        return 0.0
    return 1.0 if "FAILED" in output and re.search(rf"got:.*{re.escape(alert)}", output, re.DOTALL) else None


def _series(pool: str, cluster: str) -> str:
    labels = {
        "monitored_resource": "k8s_node_pool",
        "cluster_name": cluster,
        "node_pool_name": pool,
        "interruption_type": PREEMPTION_TYPE,
        "interruption_reason": "Eviction",
    }
    return INTERRUPTIONS_METRIC + "{" + ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"


def _values(pool: str, counts: Counter[tuple[str, int]], last: int) -> str:
    return " ".join(str(counts[pool, tick]) if counts[pool, tick] else "_" for tick in range(last + 1))


def _rule(alert: str) -> dict[str, Any] | None:
    command = [sys.executable, "-m", "monitoring", "alerts", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PROMTOOL_S, check=False)
    if done.returncode:
        return None
    known = {each["name"]: each for each in json.loads(done.stdout)["alerts"]}
    if alert not in known:
        return None
    found = known[alert]
    return {"alert": alert, "expr": found["query"], "for": f"{found['hold_s']}s"}
