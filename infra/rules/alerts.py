"""Rules for alert policies whose mistakes the provider accepts. Tests of monitoring show that the
alerts fire.
"""

from collections.abc import Iterator

from holdfast.support.values import duration_s
from infra.rules.model import Facts, Finding, PlannedResource, environment_finding, rule

PROVIDER = "google provider 7.39 accepts it silently (tested)"
POLICY = "google_monitoring_alert_policy"
STEP_S = 30
MAX_S = {"duration": 3_600, "evaluation_interval": 300}


def _iter_queries(facts: Facts) -> Iterator[PlannedResource]:
    """Yield the PromQL block of every condition."""
    for policy in facts.of(POLICY):
        for condition in policy.blocks("conditions"):
            yield from condition.blocks("condition_prometheus_query_language")


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
    for query in _iter_queries(facts):
        for path, limit in MAX_S.items():
            text = query.get(path)
            if text is None:
                continue
            seconds = duration_s(str(text)) if str(text).endswith("s") else None
            if seconds is None or seconds % STEP_S or seconds > limit:
                yield query.finding(path, f"a multiple of 30s up to {limit}s", "correct it")


@rule(reason="otherwise an alert has no recipient", source="Cloud Monitoring documentation")
def alerts_are_on_and_heard(facts: Facts) -> Iterator[Finding]:
    """Every alert is enabled and has a channel; a production environment names the recipients."""
    alerts = facts.environment.alerts
    has_recipient = bool(alerts.emails or alerts.channels)
    if facts.environment.production and not has_recipient:
        yield environment_finding(
            facts.environment,
            "alerts",
            "no recipient",
            "emails or channels",
            "name who is on call",
        )
    for policy in facts.of(POLICY):
        if policy.get("enabled") is False:
            yield policy.finding("enabled", "True", "delete the alert, or enable it")
        # A plan knows the names of new channels only after apply.
        if "notification_channels" in policy.values and not has_recipient:
            yield policy.finding(
                "notification_channels",
                "at least one",
                "set alerts.emails",
                "none",
            )
