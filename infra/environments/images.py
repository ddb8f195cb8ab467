"""Which images an environment's policy admits."""

from infra.environments.schema import Environment


def policy_is_written(environment: Environment) -> bool:
    security = environment.security
    return security.binary_authorization and not security.image_policy_elsewhere


def patterns(environment: Environment) -> tuple[str, ...]:
    return (f"{environment.image_registry}/**", *environment.security.image_patterns)
