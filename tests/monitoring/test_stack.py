"""The synthesised stack: every alert a policy that is on, heard, and carries its runbook."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.contract.capacity import Capacity
from holdfast.contract.machines import MACHINE_TYPES
from holdfast.place import prices
from infra.environments import load
from monitoring.alerting.alert import AlertSource
from monitoring.alerting.alerts import alerts
from monitoring.stack import budget, limits_of

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("synth")
    environment = os.environ | {"HOLDFAST_ENV": "prod", "HOLDFAST_STATE": "local", "CDKTF_OUTDIR": str(out)}
    subprocess.run([sys.executable, "-m", "infra.main"], env=environment, check=True, capture_output=True)
    return json.loads((Path(out) / "stacks" / "monitoring-prod" / "cdk.tf.json").read_text())["resource"]


def test_every_alert_is_a_policy_with_its_query_threshold_and_hold(resources: dict[str, Any]) -> None:
    planned = resources["google_monitoring_alert_policy"]
    known = {a.slug: a for a in alerts(limits_of(load("prod"))) if a.source is not AlertSource.BUDGET}
    assert set(planned) == set(known)
    for slug, alert in known.items():
        [condition] = planned[slug]["conditions"]
        if alert.source is AlertSource.LOG:
            assert condition["condition_matched_log"]["filter"] == alert.query
            assert planned[slug]["alert_strategy"]["notification_rate_limit"]
        else:
            block = condition["condition_prometheus_query_language"]
            assert (block["query"], block["duration"]) == (alert.query, f"{alert.hold_s}s")
            assert block["disable_metric_validation"] is True


def test_goodput_is_judged_by_the_break_even_of_the_dearest_spot_pool() -> None:
    environment, table = load("prod"), prices.load()
    shares = [
        table.quote(machine, environment.region, Capacity.SPOT).usd  # type: ignore[union-attr]
        / table.quote(machine, environment.region, Capacity.ON_DEMAND).usd  # type: ignore[union-attr]
        for machine in {MACHINE_TYPES[p.machine_type] for p in environment.pools() if p.capacity is Capacity.SPOT}
    ]
    assert limits_of(environment)["goodput_min"] == round(max(shares), 2) < 0.99
    moved = replace(environment, alerts=replace(environment.alerts, goodput_min=0.7))
    assert limits_of(moved)["goodput_min"] == 0.7


def test_every_policy_is_on_and_heard_and_explains_itself(resources: dict[str, Any]) -> None:
    for slug, policy in resources["google_monitoring_alert_policy"].items():
        assert policy["enabled"] is True
        assert policy["notification_channels"], slug
        assert "**First command.**" in policy["documentation"]["content"]
        assert policy["severity"] in ("CRITICAL", "ERROR", "WARNING")


def test_the_budget_notifies_the_same_people(resources: dict[str, Any]) -> None:
    month = resources["google_billing_budget"]["month"]
    assert month["amount"]["specified_amount"] == {
        "currency_code": "USD",
        "units": str(load("prod").budget.monthly_usd),
    }  # type: ignore[union-attr]
    assert month["all_updates_rule"]["monitoring_notification_channels"]
    assert [rule["threshold_percent"] for rule in month["threshold_rules"]] == [0.5, 0.9, 1.0]


def test_a_budget_is_in_the_currency_of_its_account() -> None:
    plan = load("prod").budget
    assert plan
    euros = replace(load("prod"), budget=replace(plan, currency="EUR"))
    amount: Any = budget(euros, [])["amount"]
    assert amount["specified_amount"]["currency_code"] == "EUR"


def test_dashboard_variables_survive_terraform(resources: dict[str, Any]) -> None:
    text = resources["google_monitoring_dashboard"]["job"]["dashboard_json"]
    assert "$${job.value}" in text
    assert text.replace("$${", "").count("${") == 0
