"""Finds when alerts fire on samples that an exporter wrote, by Prometheus's own engine.

Samples come as what Cloud Monitoring was sent; their names in PromQL follow Google's rule for
custom metrics.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from monitoring.alerting.alert import Alert, AlertSource
from tests.monitoring.alerting.promtool import Rule, rule, run_promtool

# promtool holds a value for each minute of each series, those without a sample too: a month at once
# fills the memory.
SLICE_MIN = 2_880
FAR_MIN = 360
Series = dict[str, dict[int, float]]
Labels = tuple[tuple[str, str], ...]
Minutes = dict[tuple[str, Labels], set[int]]
"""Alert and labels -> the minutes in which it fired."""
# Each window is queried for the first and for the last minute in which an alert fired.
WINDOW_MIN = 5
_FIRING = f'(timestamp(ALERTS{{alertstate="firing"}})[{WINDOW_MIN * 60 - 1}s:1m])'
_ASKED = tuple(f"{which}_over_time{_FIRING}" for which in ("min", "max"))
_AT = re.compile(r"time: ((?:\d+[dhms])+),")
_SAMPLE = re.compile(r"\{(?P<labels>[^{}]*)\} (?P<value>[0-9.E+]+)")
_LABEL = re.compile(r'(\w+)=\\?"(.*?)\\?"(?:, |$)')
_UNIT_MIN = {
    "d": 1440,
    "h": 60,
    "m": 1,
    "s": 1 / 60,
}
_WINDOW = re.compile(r"(?:\[|offset )(\d+)([smhd])")
# Holds Unix time, which promtool's clock counts from the beginning of a slice.
_CLOCK = "heartbeat_seconds{"


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
    series: Series = field(default_factory=lambda: defaultdict[str, dict[int, float]](dict))

    def create_time_series(self, *, name: str, time_series: Sequence[Any], **_: object) -> None:
        for sent in time_series:
            metric = sent.metric.type
            value = sent.points[0].value
            number = float(value.int64_value or value.double_value)
            since_s = self.began_s if metric.endswith("heartbeat_seconds") else 0.0
            labels = (*sent.resource.labels.items(), *sent.metric.labels.items())
            name = series_name(metric, labels)
            self.series[name][self.minute] = number - since_s

    def add(self, metric: str, labels: dict[str, str], value: float) -> None:
        name = series_name(metric, tuple(labels.items()))
        self.series[name][self.minute] = value


@cache
def series_name(metric_type: str, labels: Labels) -> str:
    """Return the name in promtool's notation. The later value of a repeated label counts."""
    pairs: list[str] = []
    for key, value in sorted(dict(labels).items()):
        pairs.append(f"{key}={json.dumps(value)}")
    return f"{promql_name(metric_type)}{{{','.join(pairs)}}}"


def promql_name(metric_type: str) -> str:
    """`custom.googleapis.com/holdfast/x` -> `custom_googleapis_com:holdfast_x`. Without a path it
    is one already.
    """
    domain, slash, path = metric_type.partition("/")
    if not slash:
        return metric_type
    return f"{_replace_signs(domain)}:{_replace_signs(path)}"


def _replace_signs(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def firings(
    alerts: Iterable[Alert],
    recorder: Recorder,
    slice_min: int = SLICE_MIN,
) -> list[Firing]:
    """Return firings in the order of their start. Pauses below two minutes are left out.

    Slices of the time are played one by one, each with as much before it as a rule looks back;
    rules that look back about as far are played together, with the series that they read.
    """
    minutes: Minutes = defaultdict(set)
    promql_alerts = [alert for alert in alerts if alert.source is AlertSource.PROMQL]
    for rules in _by_reach(map(rule, promql_alerts)):
        before_min = max(_looks_back_min(rule) for rule in rules)
        read = _metrics(rules)
        series = {}
        for name, values in recorder.series.items():
            if name.partition("{")[0] in read:
                series[name] = values
        for first in range(0, recorder.minute + 1, slice_min):
            last = min(first + slice_min - 1, recorder.minute)
            fired_minutes = _firing_minutes(rules, series, first, last, before_min)
            for key, fired in fired_minutes.items():
                minutes[key] |= fired
    periods = []
    for (name, labels), values in minutes.items():
        for first, last in _runs(values):
            periods.append(
                Firing(
                    alert=name,
                    labels=labels,
                    first_min=first,
                    last_min=last,
                )
            )
    return sorted(periods, key=lambda firing: firing.first_min)


def _by_reach(rules: Iterable[Rule]) -> Iterable[list[Rule]]:
    """Group rules by how far they look back: one that looks back a day would make all others play a
    day longer in every slice.
    """
    rules_by_reach: dict[bool, list[Rule]] = defaultdict(list)
    for alert_rule in rules:
        is_far = _looks_back_min(alert_rule) > FAR_MIN
        rules_by_reach[is_far].append(alert_rule)
    return rules_by_reach.values()


def _metrics(rules: Iterable[Rule]) -> frozenset[str]:
    """Return the names in the rules' queries: metrics, and words of the language."""
    names: set[str] = set()
    for alert_rule in rules:
        names.update(re.findall(r"[a-zA-Z_:][\w:]*", alert_rule["expr"]))
    return frozenset(names)


def _looks_back_min(rule: Rule) -> int:
    """Return the minutes that a rule looks back, with the time for which it must hold, and five
    minutes in which a sample stays valid.
    """
    total_min = 0.0
    for n, unit in _WINDOW.findall(rule["expr"]):
        total_min += int(n) * _UNIT_MIN[unit]
    hold = re.fullmatch(r"(\d+)([smhd])", rule.get("for", "0s"))
    assert hold, rule
    total_min += int(hold[1]) * _UNIT_MIN[hold[2]]
    return int(total_min) + 5


def _firing_minutes(
    rules: list[Rule],
    series: Series,
    first: int,
    last: int,
    before_min: int,
) -> Minutes:
    """Return the minutes from `first` to `last` in which each alert fired."""
    begin = max(0, first - before_min)
    cut_series: Series = {}
    for name, values in series.items():
        cut_values = _cut(name, values, begin, last)
        if cut_values:
            cut_series[name] = cut_values
    first_window = first - begin + WINDOW_MIN - 1
    windows = range(first_window, last - begin + WINDOW_MIN, WINDOW_MIN)
    answer = _ask(rules, cut_series, windows)
    minutes: Minutes = defaultdict(set)
    for window, labels, minute in _answers(answer):
        name = labels.pop("alertname")
        labels.pop("alertstate", None)
        labels.pop("severity", None)
        key = (name, tuple(sorted(labels.items())))
        window_begin = window + begin - WINDOW_MIN
        in_window = [fired for fired in minutes[key] if fired > window_begin]
        in_window.append(minute + begin)
        minutes[key] |= set(range(min(in_window), max(in_window) + 1))
    inside: Minutes = {}
    for key, fired_minutes in minutes.items():
        fired_inside = fired_minutes & set(range(first, last + 1))
        if fired_inside:
            inside[key] = fired_inside
    return inside


def _cut(name: str, values: dict[int, float], begin: int, last: int) -> dict[int, float]:
    earlier_s = 60 * begin if _CLOCK in name else 0
    values_in_range: dict[int, float] = {}
    for minute, value in values.items():
        if begin <= minute <= last:
            values_in_range[minute - begin] = value - earlier_s
    return values_in_range


def _ask(rules: list[Rule], series: Series, minutes: Iterable[int]) -> str:
    input_series = []
    for name, values in series.items():
        input_series.append(
            {
                "series": name,
                "values": _values(values),
            }
        )
    questions = []
    for minute in minutes:
        for expr in _ASKED:
            questions.append(
                {
                    "expr": expr,
                    "eval_time": f"{minute}m",
                    "exp_samples": [],
                }
            )
    test = {
        "interval": "1m",
        "input_series": input_series,
        "promql_expr_test": questions,
    }
    printed = run_promtool([(rules, "1m", test)])
    # Expecting nothing makes promtool print whatever there is, and anything else is no answer.
    assert "SUCCESS" in printed or "FAILED" in printed, printed[:2000]
    assert "error" not in printed.lower().replace("errors", ""), printed[:2000]
    return printed


def _values(values: dict[int, float]) -> str:
    """Return values in promtool's notation, gaps included."""
    words: list[str] = []
    following = 0
    for minute in sorted(values):
        gap = minute - following
        if gap:
            words.append(f"_x{gap}" if gap > 1 else "_")
        value = values[minute]
        words.append(f"{value:g}" if abs(value) < 1e5 else f"{value:.0f}")
        following = minute + 1
    return " ".join(words)


def _answers(output: str) -> Iterable[tuple[int, dict[str, str], int]]:
    """(end of the window, labels, first or last minute of it in which the alert fired)."""
    position = 0
    for line in output.splitlines():
        moment = _AT.search(line)
        if moment:
            minutes = 0.0
            for n, unit in re.findall(r"(\d+)([dhms])", moment[1]):
                minutes += int(n) * _UNIT_MIN[unit]
            position = round(minutes)
        elif line.strip().startswith("got:"):
            for sample in _SAMPLE.finditer(line):
                labels = dict(_LABEL.findall(sample["labels"]))
                fired_min = round(float(sample["value"]) / 60)
                yield position, labels, fired_min


def _runs(minutes: set[int]) -> Iterable[tuple[int, int]]:
    begin = before = min(minutes)
    for minute in sorted(minutes)[1:]:
        if minute > before + 2:
            yield begin, before
            begin = minute
        before = minute
    yield begin, before
