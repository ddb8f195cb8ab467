"""The stack `monitoring-<env>`: alert policies, dashboards and budgets.

It can be deployed alone: `cdktf deploy monitoring-ENV --ignore-missing-stack-dependencies`.

Every policy is one alert of alerts.py; this module decides no threshold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from holdfast.cost import money
from infra.environments.schema import Environment, Team
from infra.specs import Resource, outputs
from monitoring.alerting import dashboard, runbook
from monitoring.alerting.alert import BURN, ERROR_BUDGET, Alert, AlertSource, Values
from monitoring.alerting.alerts import alerts, list_team_alerts

CLOSE_AFTER = "604800s"
EVALUATE_EVERY = "60s"
# Without a limit, a log alert notifies for every line.
AT_MOST_EVERY = "3600s"
MAX_CONDITION_NAME = 200
NAMESPACE_COSTS = "k8s-namespace"
BUDGET_WARNS_AT = (0.5, 0.9, 1.0)
BUDGET_CHANNELS = 5
"""Google's limit for the channels of a budget."""
# The threshold if no Spot pool has a price.
GOODPUT_MIN = 0.8


def make_limits(environment: Environment) -> Values:
    """Return the values of the placeholders of queries for an environment."""
    computed = money.break_even_share(environment.pools(), environment.region) or GOODPUT_MIN
    return asdict(environment.alerts) | {
        "cluster": environment.cluster_name,
        "dead_letters": environment.topic("dead"),
        "goodput_min": environment.alerts.goodput_min or computed,
        "serving_base": environment.serving.base_needed if environment.serving else 0,
        "in_namespaces": "",
        "in_pod_namespaces": "",
    }


def make_words(environment: Environment) -> dict[str, str]:
    """Return shell variable of the runbook -> value of the environment."""
    checkpoints = f"gs://{environment.bucket('checkpoints')}/{environment.storage.default_run}"
    return {
        "ENV": environment.name,
        "PROJECT": environment.project,
        "CLUSTER": environment.cluster_name,
        "REGION": environment.region,
        "CHECKPOINTS": checkpoints.rstrip("/"),
    }


def _guard(environment: Environment) -> Resource:
    """Return a resource of Terraform itself that stops a destroy of a protected environment here,
    in the first stack: otherwise all alerts would be destroyed before the cluster refuses. The
    error shows the resource's name.
    """
    return Resource(
        kind="terraform_data",
        id="protected-run-make-destroy",
        arguments={"input": environment.name},
        protected=environment.is_protected,
    )


def resources(environment: Environment) -> list[Resource]:
    """Return the resources of the stack, in the order of their kinds."""
    limits = make_limits(environment)
    resources: list[Resource] = [_guard(environment)]

    def add(kind: str, id: str, arguments: Mapping[str, object]) -> None:
        resources.append(Resource(kind=kind, id=id, arguments=arguments))

    def add_channels(id_prefix: str, emails: Sequence[str], existing: Sequence[str]) -> list[str]:
        names = []
        for number, email in enumerate(emails):
            id = f"{id_prefix}-{number}"
            add("google_monitoring_notification_channel", id, _channel(environment, email))
            # Google chooses the name of a channel, so policies refer to it.
            names.append(f"${{google_monitoring_notification_channel.{id}.name}}")
        return [*names, *existing]

    channels = add_channels("email", environment.alerts.emails, environment.alerts.channels)
    base_url = environment.alerts.runbook_base_url or runbook.remote_url()
    for alert in alerts(limits, environment.alerts.modules):
        if alert.source is not AlertSource.BUDGET:
            arguments = policy(alert, environment, channels, base_url)
            add("google_monitoring_alert_policy", alert.slug, arguments)
    for team in environment.teams:
        recipients = add_channels(f"email-{team.name}", team.alert_emails, team.alert_channels)
        if team.budget_usd:
            id = f"month-{team.name}"
            # A channel in both lists is named once: Google notifies five at most.
            warned = list(dict.fromkeys([*recipients, *channels]))
            add("google_billing_budget", id, budget(environment, warned, team))
        if not recipients:
            continue
        for alert in list_team_alerts(limits, team.spaces, environment.alerts.modules):
            arguments = policy(alert, environment, recipients, base_url)
            arguments["display_name"] = f"{alert.name} of {team.name}"
            add("google_monitoring_alert_policy", f"{alert.slug}-{team.name}", arguments)
    for id, text in _dashboards(environment, limits).items():
        # A dashboard's variables look like Terraform's.
        escaped = text.replace("${", "$${")
        add("google_monitoring_dashboard", id, {"dashboard_json": escaped})
    if environment.budget:
        add("google_billing_budget", "month", budget(environment, channels))
    return resources


def _channel(environment: Environment, email: str) -> dict[str, object]:
    """Return a channel for email. Chat and pager need a secret or a consent: create them by hand,
    and name them in `channels`.
    """
    return {
        "display_name": f"{environment.cluster_name}: {email}",
        "type": "email",
        "labels": {"email_address": email},
        "user_labels": environment.all_labels(),
    }


def _dashboards(environment: Environment, limits: Values) -> dict[str, str]:
    labels = {"environment": environment.name}
    usd = money.usd_by_pool(environment.pools(), environment.region)
    on_call = dashboard.on_call(usd)
    job = dashboard.charts("job")
    screens = {
        "on-call": dashboard.render("$cluster: on call", on_call, labels, limits),
        "job": dashboard.render("$cluster: job", job, labels, limits, choose="job"),
    }
    if environment.serving:
        charts = dashboard.charts("serving")
        values = {
            **limits,
            "failed_share": BURN * ERROR_BUDGET,
            "inflight_target": environment.serving.inflight_target,
            "promised_per_s": environment.serving.promised_per_s,
        }
        screens["serving"] = dashboard.render("$cluster: serving", charts, labels, values)
    return screens


def policy(
    alert: Alert,
    environment: Environment,
    channels: Sequence[str],
    base_url: str,
) -> dict[str, object]:
    """Return the arguments of an alert's policy; its documentation is the section of the
    runbook.
    """
    text = runbook.documentation(
        alert, base_url, make_words(environment), outputs.credentials(environment)
    )
    documentation: dict[str, object] = {
        # Cloud Monitoring's variables look like Terraform's.
        "content": text.content.replace("${", "$${"),
        "mime_type": "text/markdown",
        "subject": text.subject.replace("${", "$${"),
    }
    if text.url:
        documentation["links"] = [{"display_name": "Runbook", "url": text.url}]
    strategy: dict[str, object] = {"auto_close": CLOSE_AFTER}
    if alert.source is AlertSource.LOG:
        strategy["notification_rate_limit"] = {"period": AT_MOST_EVERY}
    return {
        "display_name": alert.name,
        "combiner": "OR",
        "enabled": True,
        "severity": alert.severity.level,
        "conditions": [{"display_name": alert.why[:MAX_CONDITION_NAME], **condition(alert)}],
        "documentation": documentation,
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
            # The first preemption creates the metric; the policy must exist before.
            "disable_metric_validation": True,
        }
    }


def budget(
    environment: Environment,
    channels: Sequence[str],
    team: Team | None = None,
) -> dict[str, object]:
    """Return the arguments of the project's budget, or of a team's: GKE's cost allocation labels
    the costs of its namespace (decision 0188). It warns the first of the channels.
    """
    plan = environment.budget
    assert plan
    name = environment.cluster_name
    units = plan.monthly_usd
    filter_: dict[str, object] = {
        "projects": [f"projects/{environment.project_number}"],
        "calendar_period": "MONTH",
        "credit_types_treatment": "INCLUDE_ALL_CREDITS",
    }
    if team:
        name = f"{name} {team.name}"
        units = team.budget_usd
        filter_["labels"] = {NAMESPACE_COSTS: team.spaces[0]}
    thresholds = []
    for share in BUDGET_WARNS_AT:
        thresholds.append({"threshold_percent": share, "spend_basis": "CURRENT_SPEND"})
    return {
        "billing_account": plan.billing_account,
        "display_name": f"{name} a month",
        "budget_filter": filter_,
        "amount": {
            "specified_amount": {
                "currency_code": plan.currency,
                "units": str(units),
            }
        },
        "threshold_rules": thresholds,
        "all_updates_rule": {
            "monitoring_notification_channels": list(channels)[:BUDGET_CHANNELS],
            "disable_default_iam_recipients": False,
        },
    }
