"""What must hold of an environment and of its plan, beyond what the provider checks."""

from infra.environments.schema import Environment


def require_clean(environment: Environment) -> None:
    """Raise the first broken rule as an InputError."""
