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
    """Build a stack of exactly these resources, with the provider and state of an environment."""
    fields = placeholders(environment)
    billing_project = ""
    if area == "monitoring" and environment.budget:
        billing_project = environment.project
    built = cdk.Stack(
        app,
        names.stack(area, environment.name),
        project=environment.project,
        region=environment.region,
        provider=(GOOGLE_PROVIDER_SOURCE, GOOGLE_PROVIDER_VERSION),
        state_bucket="" if local_state or fields else environment.state_bucket,
        placeholders=[] if local_state else fields,  # local state may be planned with a CHANGE-ME
        billing_project=billing_project,
    )
    for resource in resources:
        built.add(
            resource.kind,
            resource.id,
            resource.arguments,
            after=resource.after,
            ignore_changes=resource.ignore_changes,
            protected=resource.protected,
        )
    return built
