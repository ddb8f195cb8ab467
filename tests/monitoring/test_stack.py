"""The stack computes thresholds and budgets from an environment. Inventories have its plans."""

from dataclasses import replace
from typing import Any

from holdfast.cost import prices
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.machines import MACHINE_TYPES
from infra.environments import load
from monitoring.stack import budget, make_limits, resources
from tests.infra.samples import two_teams


def test_goodput_limit_is_the_dearest_spot_pools_break_even() -> None:
    environment = load("prod")
    table = prices.load()
    shares = []
    for pool in environment.pools():
        if pool.capacity is not Capacity.SPOT or not pool.accelerator:
            continue
        machine = MACHINE_TYPES[pool.machine_type]
        spot = table.quote(machine, environment.region, Capacity.SPOT)
        on_demand = table.quote(machine, environment.region, Capacity.ON_DEMAND)
        assert spot
        assert on_demand
        shares.append(spot.usd / on_demand.usd)
    assert make_limits(environment)["goodput_min"] == round(max(shares), 2) < 0.99
    moved = replace(environment, alerts=replace(environment.alerts, goodput_min=0.7))
    assert make_limits(moved)["goodput_min"] == 0.7


def test_budget_uses_the_billing_accounts_currency() -> None:
    plan = load("prod").budget
    assert plan
    euros = replace(load("prod"), budget=replace(plan, currency="EUR"))
    amount: Any = budget(euros, [])["amount"]
    assert amount["specified_amount"]["currency_code"] == "EUR"


def test_team_budget_warns_the_team_before_the_platform() -> None:
    environment = two_teams()
    vision, speech = environment.teams
    channel = "projects/acme/notificationChannels/7"
    planned = resources(
        replace(environment, teams=(replace(vision, alert_channels=(channel,)), speech))
    )
    (warning,) = [resource for resource in planned if resource.id == "month-vision"]
    rule: Any = warning.arguments["all_updates_rule"]
    shared = "${google_monitoring_notification_channel.email-0.name}"
    assert rule["monitoring_notification_channels"] == [channel, shared]


def test_team_with_recipients_gets_alerts_about_its_own_jobs() -> None:
    environment = two_teams()
    vision, speech = environment.teams
    channel = "projects/acme/notificationChannels/7"
    speech = replace(speech, alert_emails=("oncall@speech.example",), alert_channels=(channel,))
    before = {resource.address for resource in resources(environment)}
    added = []
    for resource in resources(replace(environment, teams=(vision, speech))):
        if resource.address not in before:
            added.append(resource)
    (recipient, *policies) = added
    assert recipient.arguments["labels"] == {"email_address": "oncall@speech.example"}
    assert len(policies) > 10
    for policy in policies:
        assert policy.arguments["notification_channels"] == [
            f"${{{recipient.address}.name}}",
            channel,
        ]
        assert str(policy.arguments["display_name"]).endswith(" of speech")
        assert '=~"speech|speech-dev"' in str(policy.arguments["conditions"])
