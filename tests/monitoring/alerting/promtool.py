"""Plays histories of metrics through Prometheus's own engine, and shows whether the alerts fired as
expected.

promtool comes from PATH (Debian: prometheus), or from the cache that `make tools` fills.
Releases from 2.42 to 3.x are understood.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

from holdfast.support.errors import Unjudged
from monitoring.alerting.alert import Alert
from tests.tools import build

PROMTOOL_S = 900
AT_ONCE = 100
Rule = dict[str, Any]
VERDICTS = {"  SUCCESS": True, "  FAILED:": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    series: tuple[tuple[str, str], ...]
    """(series, values), in promtool's notation, one sample a step: 'a+bxn' starts at a and adds b n
    times, 'axn' repeats, '_xn' is a gap.
    """
    step_min: int = 1
    """Minutes between two samples, and between two evaluations of the alert."""
    at_min: int
    """The minute of the verdict."""
    fires: tuple[tuple[tuple[str, str], ...], ...] = ()
    """Labels of each alert that fires then, without name and severity; none for a good history."""
    quiet_until_min: int = -1
    """An earlier moment at which nothing may fire yet; -1 asks for none."""


@dataclass(frozen=True, slots=True)
class Outcome:
    alert: str
    history: History
    held: bool
    output: str
    """The output of promtool about it."""


def program() -> str:
    built = str(build.TOOLS["promtool"].binary)
    path = shutil.which("promtool") or shutil.which(built)
    if not path:
        raise Unjudged("no promtool: neither on PATH nor built by `make tools`")
    return str(path)


def run(cases: Sequence[tuple[Alert, History]]) -> list[Outcome]:
    """Run every case in the order given, a few hundred in one run of promtool."""
    outcomes: list[Outcome] = []
    for first in range(0, len(cases), AT_ONCE):
        outcomes += _run(cases[first : first + AT_ONCE])
    return outcomes


def _run(cases: Sequence[tuple[Alert, History]]) -> list[Outcome]:
    """Run cases with a file for each, because promtool gives one verdict for a file."""
    files = []
    for alert, history in cases:
        files.append(([rule(alert)], f"{history.step_min}m", _case(alert, history)))
    results = verdicts(run_promtool(files), len(cases))
    outcomes = []
    for (passed, output), (alert, history) in zip(results, cases, strict=True):
        outcomes.append(Outcome(alert.name, history, passed, output))
    return outcomes


def run_promtool(files: Sequence[tuple[Sequence[Rule], str, dict[str, Any]]]) -> str:
    """Runs promtool over files, each with its rules, the interval between evaluations, and one
    test. Returns its output.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-alerts-") as name:
        command = [program(), "test", "rules"]
        folder = Path(name)
        for number, (rules, interval, test) in enumerate(files):
            # JSON is YAML, and needs no quoting rules.
            (folder / f"rules-{number}.json").write_text(
                json.dumps({"groups": [{"name": "holdfast", "rules": rules}]})
            )
            body = {
                "rule_files": [f"rules-{number}.json"],
                "evaluation_interval": interval,
                "tests": [test],
            }
            (folder / f"case-{number}.json").write_text(json.dumps(body))
            command.append(str(folder / f"case-{number}.json"))
        # One stream: SUCCESS goes to stdout and FAILED to stderr, and only their common order names
        # the file.
        return subprocess.run(
            command,
            stdout=PIPE,
            stderr=STDOUT,
            text=True,
            timeout=PROMTOOL_S,
            check=False,
        ).stdout


def verdicts(output: str, count: int) -> list[tuple[bool, str]]:
    """Return whether each file passed, with its output, in the order of the files.

    2.x prints the name of a file above its verdict, 3.x prints no name, and only 3.x writes JUnit;
    a verdict for each file, in their order, is what all releases print. Anything else is Unjudged,
    never "not held".
    """
    results: list[tuple[bool, str]] = []
    for line in output.splitlines():
        if line in VERDICTS:
            results.append((VERDICTS[line], line + "\n"))
        elif results and not line.startswith("Unit Testing:"):
            held, before = results[-1]
            results[-1] = held, before + line + "\n"
    if len(results) != count:
        raise Unjudged(
            f"promtool gave {len(results)} verdicts for {count} files; it printed: {output[:500]}"
        )
    return results


def rule(alert: Alert) -> Rule:
    return {
        "alert": alert.name,
        "expr": alert.query,
        "for": f"{alert.hold_s}s",
        "labels": {"severity": alert.severity.value},
    }


def _case(alert: Alert, history: History) -> dict[str, Any]:
    expected = []
    for labels in history.fires:
        expected.append({"exp_labels": dict(labels) | {"severity": alert.severity.value}})
    verdicts: list[dict[str, Any]] = [
        {
            "eval_time": f"{history.at_min}m",
            "alertname": alert.name,
            "exp_alerts": expected,
        }
    ]
    if history.quiet_until_min >= 0:
        verdicts.insert(
            0,
            {
                "eval_time": f"{history.quiet_until_min}m",
                "alertname": alert.name,
                "exp_alerts": [],
            },
        )
    return {
        "interval": f"{history.step_min}m",
        "input_series": [{"series": series, "values": values} for series, values in history.series],
        "alert_rule_test": verdicts,
    }
