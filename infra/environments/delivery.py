"""Settings of the project and repository: who may deploy from GitHub, and the budget that warns.

Read through `Environment`. Each check raises an InputError that names the field.
"""

from dataclasses import dataclass

from infra.environments.checks import forms, numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """Keyless access for the workflows of one GitHub repository: a planner that reads, a deployer behind approval."""

    repository: str
    """owner/name, as GitHub spells it."""
    environment: str = "production"
    """The repository's environment in which a job must run to deploy: the gate. Name one for each environment, and protect
    it with reviewers where a person decides."""

    def __post_init__(self) -> None:
        forms("delivery.", self, "repository", "environment")


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """A monthly budget of the project; it warns, it does not stop anything."""

    billing_account: str
    monthly_usd: int
    """In `currency`, despite the field's name."""
    currency: str = "USD"
    """The billing account's currency; the API rejects others. `gcloud billing accounts describe`."""

    def __post_init__(self) -> None:
        forms("budget.", self, "billing_account", "currency")
        numbers("budget.", self, monthly_usd=(1, 100_000_000))
