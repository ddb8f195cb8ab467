"""Alert policies, as far as the provider lets nonsense through. That they fire is tested in
monitoring.
"""

import re
from collections.abc import Iterator

from holdfast.support.values import duration_s
from infra.rules.model import Facts, Finding, PlannedResource, of_environment, rule

PROVIDER = "google provider 7.39 accepts it silently (tested)"
POLICY = "google_monitoring_alert_policy"
STEP_S = 30


def _queries(facts: Facts) -> list[PlannedResource]:
    """Every PromQL condition."""
    conditions = []
    for policy in facts.of(POLICY):
        for condition in policy.blocks("conditions"):
            conditions.append(condition)
    return [
        query for each in conditions for query in each.blocks("condition_prometheus_query_language")
    ]


@rule(
    reason=(
        "the API only accepts multiples of 30 s, the plan others too; a slow alert fires after"
        " users have noticed"
    ),
    source=PROVIDER,
)
def alert_durations(facts: Facts) -> Iterator[Finding]:
    """Every alert fires within an hour and is evaluated at least every five minutes, in multiples
    of 30 s.
    """
    for query in _queries(facts):
        for path, most in (("duration", 3_600), ("evaluation_interval", 300)):
            text = query.get(path)
            seconds = duration_s(str(text), "s")
            if text is not None and (seconds is None or seconds % STEP_S or seconds > most):
                yield query.finding(path, f"a multiple of 30s up to {most}s", "correct it")


@rule(reason="the plan accepts broken PromQL, the apply fails", source=PROVIDER)
def alert_queries_balance(facts: Facts) -> Iterator[Finding]:
    """Alert queries have balanced brackets and quotes."""
    for query in _queries(facts):
        text = re.sub(r'"(?:[^"\\]|\\.)*"', "", str(query.get("query")))
        if (
            '"' in text
            or any(text.count(a) != text.count(b) for a, b in ("()", "[]", "{}"))
            or not text.strip()
        ):
            yield query.finding("query", "balanced PromQL", "correct the expression")


@rule(reason="otherwise an alert has no recipient", source="Cloud Monitoring documentation")
def alerts_are_on_and_heard(facts: Facts) -> Iterator[Finding]:
    """Every alert is enabled and has a channel; a production environment names the recipients."""
    asked = facts.environment.alerts
    if facts.environment.production and not (asked.emails or asked.channels):
        yield of_environment(
            facts.environment, "alerts", "no recipient", "emails or channels", "name who is on call"
        )
    for policy in facts.of(POLICY):
        if policy.get("enabled") is False:
            yield policy.finding("enabled", "True", "delete the alert, or enable it")
        # A plan knows the names of new channels only after apply.
        if "notification_channels" in policy.values and not (asked.emails or asked.channels):
            yield policy.finding(
                "notification_channels", "at least one", "set alerts.emails", "none"
            )
