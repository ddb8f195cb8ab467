"""When alerts fire on samples that an exporter really wrote, by Prometheus's own engine.

Samples come as what Cloud Monitoring was sent; their names in PromQL follow Google's rule for custom metrics.
"""

import json
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monitoring.alerting.alert import Alert, Source
from monitoring.alerting.rule_test import promtool, rule

PROMTOOL_S = 900
Labels = tuple[tuple[str, str], ...]
# Two questions a window: the first and the last of its minutes in which an alert fired.
WINDOW_MIN = 5
_FIRING = f'(timestamp(ALERTS{{alertstate="firing"}})[{WINDOW_MIN * 60 - 1}s:1m])'
_ASKED = tuple(f"{which}_over_time{_FIRING}" for which in ("min", "max"))
_AT = re.compile(r"time: ((?:\d+[dhms])+),")
_SAMPLE = re.compile(r"\{(?P<labels>[^{}]*)\} (?P<value>[0-9.E+]+)")
_LABEL = re.compile(r'(\w+)=\\?"(.*?)\\?"(?:, |$)')
_UNIT_MIN = {"d": 1440, "h": 60, "m": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class Firing:
    alert: str
    labels: Labels
    first_min: int
    last_min: int

    def label(self, name: str) -> str:
        return dict(self.labels).get(name, "")


@dataclass(slots=True)
class Recorder:
    """A client of Cloud Monitoring that keeps what it is sent, minute by minute."""

    began_s: float = 0.0
    """Prometheus' tests begin at 0: what holds Unix time is counted from here."""
    minute: int = 0
    series: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict[str, dict[int, float]](dict))

    def create_time_series(self, *, name: str, time_series: Sequence[Any], **_: object) -> None:
        for one in time_series:
            labels = dict(one.resource.labels) | dict(one.metric.labels)
            value = one.points[0].value
            number = float(value.int64_value or value.double_value)
            since_s = self.began_s if one.metric.type.endswith("heartbeat_seconds") else 0.0
            self.add(promql_name(one.metric.type), labels, number - since_s)

    def add(self, metric: str, labels: dict[str, str], value: float) -> None:
        text = ",".join(f"{key}={json.dumps(labels[key])}" for key in sorted(labels))
        self.series[f"{metric}{{{text}}}"][self.minute] = value


def promql_name(metric_type: str) -> str:
    """`custom.googleapis.com/holdfast/x` -> `custom_googleapis_com:holdfast_x`."""
    domain, _, path = metric_type.partition("/")
    return f"{re.sub(r'[^a-zA-Z0-9_]', '_', domain)}:{re.sub(r'[^a-zA-Z0-9_]', '_', path)}"


def firings(alerts: Iterable[Alert], recorder: Recorder) -> list[Firing]:
    """In the order in which they began. A pause below two minutes is none."""
    asked = range(WINDOW_MIN, recorder.minute + WINDOW_MIN + 1, WINDOW_MIN)
    rules = [rule(alert) for alert in alerts if alert.source is Source.PROMQL]
    answer = _ask(rules, recorder, asked)
    minutes: dict[tuple[str, Labels], set[int]] = defaultdict(set)
    for window, labels, minute in _answers(answer):
        name = labels.pop("alertname")
        key = name, tuple(sorted((k, v) for k, v in labels.items() if k not in ("alertstate", "severity")))
        seen = [m for m in minutes[key] if m > window - WINDOW_MIN]
        minutes[key] |= set(range(min([minute, *seen]), max([minute, *seen]) + 1))
    found = [Firing(alert=name, labels=labels, first_min=a, last_min=b) for (name, labels), held in minutes.items() for a, b in _runs(held)]  # fmt: skip
    return sorted(found, key=lambda firing: firing.first_min)


def _ask(rules: list[dict[str, Any]], recorder: Recorder, minutes: Iterable[int]) -> str:
    series = [{"series": name, "values": _values(held)} for name, held in recorder.series.items()]
    asked = [{"expr": expr, "eval_time": f"{minute}m", "exp_samples": []} for minute in minutes for expr in _ASKED]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    with tempfile.TemporaryDirectory(prefix="holdfast-firings-") as folder:
        (Path(folder) / "rules.json").write_text(json.dumps({"groups": [{"name": "holdfast", "rules": rules}]}))
        body = {"rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": [test]}
        (Path(folder) / "test.json").write_text(json.dumps(body))
        command = [promtool(), "test", "rules", str(Path(folder) / "test.json")]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PROMTOOL_S, check=False)  # fmt: skip
    # Expecting nothing makes promtool print whatever there is, and anything else is no answer.
    assert done.returncode == 0 or "FAILED" in done.stdout, done.stdout[:2000]
    assert "error" not in done.stdout.lower().replace("errors", ""), done.stdout[:2000]
    return done.stdout


def _values(held: dict[int, float]) -> str:
    """In promtool's notation, gaps included."""
    words: list[str] = []
    following = 0
    for minute in sorted(held):
        if gap := minute - following:
            words.append(f"_x{gap}" if gap > 1 else "_")
        words.append(f"{held[minute]:g}" if abs(held[minute]) < 1e5 else f"{held[minute]:.0f}")
        following = minute + 1
    return " ".join(words)


def _answers(output: str) -> Iterable[tuple[int, dict[str, str], int]]:
    """(end of the window, labels, first or last minute of it in which the alert fired)."""
    at = 0
    for line in output.splitlines():
        if moment := _AT.search(line):
            at = sum(int(n) * _UNIT_MIN.get(unit, 0) for n, unit in re.findall(r"(\d+)([dhms])", moment[1]))
        elif line.strip().startswith("got:"):
            for sample in _SAMPLE.finditer(line):
                yield at, dict(_LABEL.findall(sample["labels"])), round(float(sample["value"]) / 60)


def _runs(minutes: set[int]) -> Iterable[tuple[int, int]]:
    begin = before = min(minutes)
    for minute in sorted(minutes)[1:]:
        if minute > before + 2:
            yield begin, before
            begin = minute
        before = minute
    yield begin, before
