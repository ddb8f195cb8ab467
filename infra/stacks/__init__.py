"""Thin stacks over the specs: one per blast radius, each with its own state."""

from infra import cdk
from infra.contract import names
from infra.environments.schema import Environment
from infra.specs import AREAS


class AreaStack(cdk.Stack):
    """Every resource that the specs of one area ask for, and nothing else."""

    def __init__(self, scope: cdk.App, area: str, environment: Environment, *, local_state: bool) -> None:
        super().__init__(
            scope, names.stack(area, environment.name), **environment.stack_arguments(local_state=local_state)
        )
        for resource in AREAS[area](environment):
            self.add(
                resource.kind,
                resource.id,
                resource.arguments,
                after=resource.after,
                ignore_changes=resource.ignore_changes,
                protected=resource.protected,
            )
