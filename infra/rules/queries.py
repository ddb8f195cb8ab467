"""Rules on queries of alerts and on filters of logs, which the APIs parse during an apply."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from infra.rules.model import Facts, Finding, PlannedResource, rule

POLICY = "google_monitoring_alert_policy"
PROMQL = "condition_prometheus_query_language"
_STRING = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')
_CALL = re.compile(r"\b([a-z_][a-z0-9_]*)\s*\(")
_PAIRS = {
    ")": "(",
    "]": "[",
    "}": "{",
}
_NAMES_FILE = Path(__file__).with_name("promql.toml")
_NAMES: dict[str, list[str]] = tomllib.loads(_NAMES_FILE.read_text())
CALLABLE = frozenset[str]().union(*_NAMES.values())
"""Every name that PromQL allows before a parenthesis."""


@rule(
    reason="Cloud Monitoring refuses a query that it cannot parse, in the middle of an apply",
    source="https://docs.cloud.google.com/monitoring/promql",
)
def queries_parse(facts: Facts) -> Iterator[Finding]:
    """Queries of alerts call functions that exist, and close what they open."""
    for policy in facts.of(POLICY):
        for condition in policy.blocks("conditions"):
            query = condition.get(f"{PROMQL}.query")
            if query is not None:
                yield from _judge(policy, str(query), _find_promql_defect(str(query)), "query")
            log_filter = condition.get("condition_matched_log.filter")
            if log_filter is not None:
                defect = find_filter_defect(str(log_filter))
                yield from _judge(policy, str(log_filter), defect, "filter")


def _judge(policy: PlannedResource, text: str, defect: str, noun: str) -> Iterator[Finding]:
    if defect:
        yield policy.finding(
            f"conditions.{noun}",
            f"a {noun} that parses",
            "correct the alert's query in monitoring/alerting/alerts.toml or your own module",
            f"{defect}: {text[:120]}",
        )


@rule(
    reason="Cloud Logging refuses a filter that it cannot parse, in the middle of an apply",
    source="https://docs.cloud.google.com/logging/docs/view/logging-query-language",
)
def log_filters_parse(facts: Facts) -> Iterator[Finding]:
    """Filters of log views and sinks close what they open and compare with something."""
    for kind in ("google_logging_log_view", "google_logging_project_sink"):
        for resource in facts.of(kind):
            defect = find_filter_defect(str(resource.get("filter") or ""))
            if defect:
                yield resource.finding(
                    "filter", "a filter that parses", "correct the filter", defect
                )


def _find_promql_defect(query: str) -> str:
    """Return what is wrong with a query; empty if nothing is found."""
    if not query.strip():
        return "no query"
    bare = _STRING.sub('""', query)
    defect = _find_open(bare)
    if defect:
        return defect
    for name in _CALL.findall(bare):
        if name not in CALLABLE:
            return f"no function {name}()"
    if re.search(r"(?:[-+*/<>=]|\b(?:and|or|unless))\s*$", bare):
        return "nothing after the last operator"
    return ""


def find_filter_defect(text: str) -> str:
    """Return what is wrong with a filter of Cloud Logging; empty if nothing is found."""
    bare = _STRING.sub('""', text)
    defect = _find_open(bare)
    if defect:
        return defect
    if re.search(r"(?:[=<>:~]|\b(?:AND|OR|NOT))\s*(?:\)|$|(?:AND|OR)\b)", bare):
        return "nothing after an operator"
    if re.search(r"(?:^|\(|\bAND|\bOR)\s*(?:AND|OR)\b", bare):
        return "two operators in a row"
    if re.search(r'""\s*""', bare):
        return "two texts without an operator"
    return ""


def _find_open(bare: str) -> str:
    """Return the first bracket or quote that is not closed; `bare` has no complete strings."""
    opened: list[str] = []
    for character in bare.replace('""', ""):
        if character in "\"'":
            return f"{character} is not closed"
        if character in _PAIRS.values():
            opened.append(character)
        elif character in _PAIRS:
            opening = opened.pop() if opened else ""
            if opening != _PAIRS[character]:
                return f"{character} closes nothing"
    return f"{opened[-1]} is not closed" if opened else ""
