"""Environments with their placeholders filled: `python -m tests.plan.stand_in.app OUT` synthesizes
prod.
"""

import sys
from dataclasses import replace
from pathlib import Path

from infra import cdk
from infra.environments import Environment, load
from infra.environments.schema import Queue
from infra.main import build
from tests.infra.samples import DELIVERY, two_teams

NUMBER = "123456789012"
TEAMS = tuple(replace(team, runs=()) for team in two_teams().teams)
BILLING_ACCOUNT = "0A1B2C-3D4E5F-6A7B8C"


def fill_placeholders(name: str) -> Environment:
    """Loads an environment with values in place of CHANGE-ME."""
    environment = load(name)
    project = f"acme-{name}"
    security = environment.security
    if security.kms_key:
        key = security.kms_key.replace("CHANGE-ME", project)
        group = security.rbac_security_group.replace("CHANGE-ME", "acme")
        security = replace(security, kms_key=key, rbac_security_group=group)
    return replace(
        environment,
        project_id=project,
        project_number=NUMBER,
        state_bucket=f"{project}-state",
        security=security,
        alerts=replace(environment.alerts, emails=("oncall@acme.example",)),
        budget=environment.budget and replace(environment.budget, billing_account=BILLING_ACCOUNT),
        # prod has none of these three; here they are on, so that their resources are applied, too.
        delivery=DELIVERY if name == "prod" else None,
        queue=Queue(lanes=1) if name == "prod" else environment.queue,
        teams=TEAMS if name == "prod" else environment.teams,
    )


def main(out: str) -> None:
    """Synthesizes both variants of prod in one process: to load the bindings takes as long as a
    synthesis.
    """
    protected = fill_placeholders("prod")
    for variant, environment in {
        "settled": protected,
        "unprotected": protected.without_protection(),
    }.items():
        (Path(out) / variant).mkdir(parents=True)
        app = cdk.App(outdir=str(Path(out) / variant))
        build(app, environment, local_state=True)
        app.synth()


if __name__ == "__main__":
    main(*sys.argv[1:])
