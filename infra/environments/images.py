"""Which images an environment's policy admits."""

import re

from infra.environments.schema import Environment


def policy_is_written(environment: Environment) -> bool:
    security = environment.security
    return security.binary_authorization and not security.image_policy_elsewhere


def patterns(environment: Environment) -> tuple[str, ...]:
    return (f"{environment.image_registry}/**", *environment.security.image_patterns)


def admits(environment: Environment, image: str) -> bool:
    """As the policy decides; True where none is written here. GKE's system images are not known here."""
    return not policy_is_written(environment) or any(_matches(pattern, image) for pattern in patterns(environment))


def _matches(pattern: str, image: str) -> bool:
    """A `*` at the end stands for the rest of a name, `**` for names below it too."""
    if pattern.endswith("**"):
        return image.startswith(pattern[:-2])
    if pattern.endswith("*"):
        return re.fullmatch(re.escape(pattern[:-1]) + "[^/]*", image) is not None
    return image == pattern
