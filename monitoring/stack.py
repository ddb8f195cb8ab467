"""The stack `monitoring-<env>`: notifications, and what the dashboards show. Deployable alone.

Every policy is one alert of alerts.py; nothing here decides a threshold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from holdfast.cost import money
from infra.environments.schema import Environment, Team
from infra.specs import Resource
from monitoring.alerting import dashboard, runbook
from monitoring.alerting.alert import BURN, ERROR_BUDGET, Alert, AlertSource, Values
from monitoring.alerting.alerts import alerts

CLOSE_AFTER = "604800s"
EVALUATE_EVERY = "60s"
# A log alert would otherwise notify for every line.
AT_MOST_EVERY = "3600s"
MAX_CONDITION_NAME = 200
NAMESPACE_COSTS = "k8s-namespace"
BUDGET_WARNS_AT = (0.5, 0.9, 1.0)
# Where no Spot pool has a price.
GOODPUT_MIN = 0.8


def limits_of(environment: Environment) -> Values:
    """What the placeholders of queries mean for an environment."""
    computed = money.break_even_share(environment.pools(), environment.region) or GOODPUT_MIN
    return asdict(environment.alerts) | {
        "cluster": environment.cluster_name,
        "dead_letters": environment.topic("dead"),
        "goodput_min": environment.alerts.goodput_min or computed,
        "serving_base": environment.serving.base_needed if environment.serving else 0,
    }


def resources(environment: Environment) -> list[Resource]:
    emails = {f"email-{number}": email for number, email in enumerate(environment.alerts.emails)}
    # Google gives the names
    channels = [f"${{google_monitoring_notification_channel.{id}.name}}" for id in emails]
    channels += environment.alerts.channels
    base_url = environment.alerts.runbook_base_url or runbook.remote_url()
    limits = limits_of(environment)
    policies = {}
    for alert in alerts(limits, environment.alerts.modules):
        if alert.source is not AlertSource.BUDGET:
            policies[alert.slug] = policy(alert, environment, channels, base_url)
    # A dashboard's own variables look like Terraform's.
    screens = {
        id: {"dashboard_json": text.replace("${", "$${")}
        for id, text in _dashboards(environment, limits).items()
    }
    budgets = {"month": budget(environment, channels)} if environment.budget else {}
    budgets |= {
        f"month-{t.name}": budget(environment, channels, t)
        for t in environment.teams
        if t.budget_usd
    }
    made: dict[str, Mapping[str, Mapping[str, object]]] = {
        "google_monitoring_notification_channel": {
            id: _channel(environment, email) for id, email in emails.items()
        },
        "google_monitoring_alert_policy": policies,
        "google_monitoring_dashboard": screens,
        "google_billing_budget": budgets,
    }
    return [
        Resource(kind=kind, id=id, arguments=given)
        for kind, of in made.items()
        for id, given in of.items()
    ]


def _channel(environment: Environment, email: str) -> dict[str, object]:
    """Chat and pager need a secret or a consent: create them by hand, and name them in `channels`."""
    return {
        "display_name": f"{environment.cluster_name}: {email}",
        "type": "email",
        "labels": {"email_address": email},
        "user_labels": environment.all_labels(),
    }


def _dashboards(environment: Environment, limits: Values) -> dict[str, str]:
    labels = {"environment": environment.name}
    usd = money.usd_by_pool(environment.pools(), environment.region)
    screens = {
        "on-call": dashboard.render("$cluster: on call", dashboard.on_call(usd), labels, limits),
        "job": dashboard.render(
            "$cluster: job", dashboard.charts("job"), labels, limits, choose="job"
        ),
    }
    served = environment.serving
    if served:
        charts = dashboard.charts("serving")
        shown = {"failed_share": BURN * ERROR_BUDGET}
        shown |= {
            "inflight_target": served.inflight_target,
            "promised_per_s": served.promised_per_s,
        }
        screens["serving"] = dashboard.render(
            "$cluster: serving", charts, labels, {**limits, **shown}
        )
    return screens


def policy(
    alert: Alert,
    environment: Environment,
    channels: Sequence[str],
    base_url: str,
) -> dict[str, object]:
    text = runbook.documentation(alert, base_url)
    links = [{"display_name": "Runbook", "url": text.url}] if text.url else []
    strategy: dict[str, object] = {"auto_close": CLOSE_AFTER}
    if alert.source is AlertSource.LOG:
        strategy["notification_rate_limit"] = {"period": AT_MOST_EVERY}
    return {
        "display_name": alert.name,
        "combiner": "OR",
        "enabled": True,
        "severity": alert.severity.level,
        "conditions": [{"display_name": alert.why[:MAX_CONDITION_NAME], **condition(alert)}],
        "documentation": {
            # the shell's variables look like Terraform's
            "content": text.content.replace("${", "$${"),
            "mime_type": "text/markdown",
            "subject": text.subject,
            **({"links": links} if links else {}),
        },
        "alert_strategy": strategy,
        "notification_channels": list(channels),
        "user_labels": environment.all_labels() | {"severity": alert.severity.value},
    }


def condition(alert: Alert) -> dict[str, object]:
    if alert.source is AlertSource.LOG:
        return {"condition_matched_log": {"filter": alert.query}}
    return {
        "condition_prometheus_query_language": {
            "query": alert.query,
            "duration": f"{alert.hold_s}s",
            "evaluation_interval": EVALUATE_EVERY,
            "alert_rule": alert.name,
            "rule_group": "holdfast",
            # The first preemption makes the metric; the policy must exist before it.
            "disable_metric_validation": True,
        }
    }


def budget(
    environment: Environment, channels: Sequence[str], team: Team | None = None
) -> dict[str, object]:
    """Of the project, or of what a team's namespace costs in it: GKE's cost allocation gives costs
    the label.
    """
    plan = environment.budget
    assert plan
    return {
        "billing_account": plan.billing_account,
        "display_name": f"{environment.cluster_name}{f' {team.name}' if team else ''} a month",
        "budget_filter": {
            "projects": [f"projects/{environment.project_number}"],
            "calendar_period": "MONTH",
            "credit_types_treatment": "INCLUDE_ALL_CREDITS",
            **({"labels": {NAMESPACE_COSTS: team.spaces[0]}} if team else {}),
        },
        "amount": {
            "specified_amount": {
                "currency_code": plan.currency,
                "units": str(team.budget_usd if team else plan.monthly_usd),
            }
        },
        "threshold_rules": [
            {"threshold_percent": share, "spend_basis": "CURRENT_SPEND"}
            for share in BUDGET_WARNS_AT
        ],
        "all_updates_rule": {
            "monitoring_notification_channels": list(channels)[:5],
            "disable_default_iam_recipients": False,
        },
    }
