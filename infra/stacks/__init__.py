"""Thin stacks over the specs: one per blast radius, each with its own state."""

from collections.abc import Iterable

from infra import cdk
from infra.contract import names
from infra.contract.versions import GOOGLE_PROVIDER_SOURCE, GOOGLE_PROVIDER_VERSION
from infra.environments.schema import Environment, placeholders
from infra.specs import Resource


def stack(
    app: cdk.App,
    area: str,
    environment: Environment,
    resources: Iterable[Resource],
    *,
    local_state: bool,
) -> cdk.Stack:
    """These resources and nothing else, with the provider and the state of an environment."""
    left = placeholders(environment)
    made = cdk.Stack(
        app,
        names.stack(area, environment.name),
        project=environment.project,
        region=environment.region,
        provider=(GOOGLE_PROVIDER_SOURCE, GOOGLE_PROVIDER_VERSION),
        state_bucket="" if local_state or left else environment.state_bucket,
        placeholders=[] if local_state else left,  # local state may be planned with a CHANGE-ME
        billing_project=environment.project if area == "monitoring" and environment.budget else "",
    )
    for r in resources:
        made.add(
            r.kind,
            r.id,
            r.arguments,
            after=r.after,
            ignore_changes=r.ignore_changes,
            protected=r.protected,
        )
    return made
