"""Alert policies, as far as the provider lets nonsense through. That they fire is tested in monitoring."""

import re
from collections.abc import Iterator

from holdfast.contract.values import duration_s
from infra.rules.model import Facts, PlannedResource, Violation, rule

PROVIDER = "google provider 7.39 accepts it silently (tested)"
POLICY = "google_monitoring_alert_policy"
STEP_S = 30


def _queries(facts: Facts) -> Iterator[PlannedResource]:
    """Every PromQL condition, bearing its policy's address."""
    for policy in facts.of(POLICY):
        for block in policy.blocks("conditions"):
            query = PlannedResource(kind="", address=policy.address, values=block).get(
                "condition_prometheus_query_language"
            )
            if query:
                yield PlannedResource(kind="", address=policy.address, values=query)


@rule(reason="the API takes multiples of 30 s; 7s passes the plan", source=PROVIDER)
def alert_durations(facts: Facts) -> Iterator[Violation]:
    """Durations and intervals of alerts are multiples of 30 s."""
    for query in _queries(facts):
        for path in ("duration", "evaluation_interval"):
            text = query.get(path)
            seconds = duration_s(str(text), "s")
            if text is not None and (seconds is None or seconds % STEP_S):
                yield query.violation(path, "a multiple of 30s", "round it")


@rule(reason="broken PromQL passes the plan and fails the apply", source=PROVIDER)
def alert_queries_balance(facts: Facts) -> Iterator[Violation]:
    """Brackets and quotes of alert queries close."""
    for query in _queries(facts):
        text = re.sub(r'"(?:[^"\\]|\\.)*"', "", str(query.get("query")))
        if '"' in text or any(text.count(a) != text.count(b) for a, b in ("()", "[]", "{}")) or not text.strip():
            yield query.violation("query", "balanced PromQL", "correct the expression")


@rule(reason="the metric does not exist before the first preemption, and the API would refuse the policy", source="GKE")
def alert_on_future_metrics(facts: Facts) -> Iterator[Violation]:
    """Alert queries may name metrics that nothing has written yet."""
    for query in _queries(facts):
        if query.get("disable_metric_validation") is not True:
            yield query.violation("disable_metric_validation", "True", "set it")


@rule(reason="an alert that nobody hears", source="Cloud Monitoring documentation")
def alerts_are_on_and_heard(facts: Facts) -> Iterator[Violation]:
    """Every alert is enabled and has a channel; in production an environment names who hears it."""
    asked = facts.environment.alerts
    if facts.environment.production and not (asked.emails or asked.channels):
        where = f"environment {facts.environment.name}: alerts"
        yield Violation(where=where, got="nobody", allowed="emails or channels", fix="name who is on call")
    for policy in facts.of(POLICY):
        if policy.get("enabled") is False:
            yield policy.violation("enabled", "True", "delete the alert, or enable it")
        # A plan knows the names of new channels only after apply.
        if "notification_channels" in policy.values and not (asked.emails or asked.channels):
            yield policy.violation("notification_channels", "at least one", "set alerts.emails", "none")


@rule(reason="who is woken has nothing to go by", source="Cloud Monitoring documentation on alert documentation")
def alerts_bear_their_runbook(facts: Facts) -> Iterator[Violation]:
    """Every alert brings what to do."""
    for policy in facts.of(POLICY):
        if not str(policy.get("documentation.content") or "").strip():
            yield policy.violation("documentation.content", "what to do", "add a section to the runbook", "none")


@rule(reason="what has been wrong for a day is found by users", source="design of this platform")
def alerts_come_in_time(facts: Facts) -> Iterator[Violation]:
    """No alert holds back for more than an hour, or looks less often than every five minutes."""
    for query in _queries(facts):
        for path, most in (("duration", 3_600), ("evaluation_interval", 300)):
            seconds = duration_s(str(query.get(path)), "s")
            if seconds is not None and seconds > most:
                yield query.violation(path, f"up to {most}s", "shorten it")
