"""Thin stacks over the specs: one per blast radius, each with its own state."""

from infra import cdk
from infra.contract import names
from infra.contract.versions import GOOGLE_PROVIDER_SOURCE, GOOGLE_PROVIDER_VERSION
from infra.environments.schema import Environment, placeholders
from infra.specs import AREAS


class EnvironmentStack(cdk.Stack):
    """With the provider and the state of an environment."""

    def __init__(
        self, scope: cdk.App, area: str, environment: Environment, *, local_state: bool, billing_project: str = ""
    ) -> None:
        left = placeholders(environment)
        super().__init__(
            scope,
            names.stack(area, environment.name),
            project=environment.project,
            region=environment.region,
            provider=(GOOGLE_PROVIDER_SOURCE, GOOGLE_PROVIDER_VERSION),
            state_bucket="" if local_state or left else environment.state_bucket,
            placeholders=[] if local_state else left,  # local state may be planned with a CHANGE-ME
            billing_project=billing_project,
        )


class AreaStack(EnvironmentStack):
    """Every resource that the specs of one area ask for, and nothing else."""

    def __init__(self, scope: cdk.App, area: str, environment: Environment, *, local_state: bool) -> None:
        super().__init__(scope, area, environment, local_state=local_state)
        for resource in AREAS[area](environment):
            self.add(
                resource.kind,
                resource.id,
                resource.arguments,
                after=resource.after,
                ignore_changes=resource.ignore_changes,
                protected=resource.protected,
            )
