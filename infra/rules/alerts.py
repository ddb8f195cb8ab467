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


@rule(reason="the API only accepts multiples of 30 s; the plan accepts other values", source=PROVIDER)
def alert_durations(facts: Facts) -> Iterator[Violation]:
    """Alert durations and intervals are multiples of 30 s."""
    for query in _queries(facts):
        for path in ("duration", "evaluation_interval"):
            text = query.get(path)
            seconds = duration_s(str(text), "s")
            if text is not None and (seconds is None or seconds % STEP_S):
                yield query.violation(path, "a multiple of 30s", "round it")


@rule(reason="the plan accepts broken PromQL, the apply fails", source=PROVIDER)
def alert_queries_balance(facts: Facts) -> Iterator[Violation]:
    """Alert queries have balanced brackets and quotes."""
    for query in _queries(facts):
        text = re.sub(r'"(?:[^"\\]|\\.)*"', "", str(query.get("query")))
        if '"' in text or any(text.count(a) != text.count(b) for a, b in ("()", "[]", "{}")) or not text.strip():
            yield query.violation("query", "balanced PromQL", "correct the expression")


@rule(reason="the metric does not exist before the first preemption, so the API would reject the policy", source="GKE")
def alert_on_future_metrics(facts: Facts) -> Iterator[Violation]:
    """Alert queries may use metrics that do not exist yet."""
    for query in _queries(facts):
        if query.get("disable_metric_validation") is not True:
            yield query.violation("disable_metric_validation", "True", "set it")


@rule(reason="otherwise an alert notifies nobody", source="Cloud Monitoring documentation")
def alerts_are_on_and_heard(facts: Facts) -> Iterator[Violation]:
    """Every alert is enabled and has a channel; a production environment names the recipients."""
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


@rule(
    reason="otherwise the on-call engineer gets no instructions",
    source="Cloud Monitoring documentation on alert documentation",
)
def alerts_have_a_runbook(facts: Facts) -> Iterator[Violation]:
    """Every alert has runbook text."""
    for policy in facts.of(POLICY):
        if not str(policy.get("documentation.content") or "").strip():
            yield policy.violation("documentation.content", "runbook text", "add a section to the runbook", "none")


@rule(reason="a slow alert fires after users have noticed the problem", source="design of this platform")
def alerts_come_in_time(facts: Facts) -> Iterator[Violation]:
    """Every alert fires within an hour and is evaluated at least every five minutes."""
    for query in _queries(facts):
        for path, most in (("duration", 3_600), ("evaluation_interval", 300)):
            seconds = duration_s(str(query.get(path)), "s")
            if seconds is not None and seconds > most:
                yield query.violation(path, f"up to {most}s", "shorten it")
