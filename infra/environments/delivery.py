"""Settings of the project and repository: who may deploy from GitHub, and the budget that warns.

Read through `Environment`. Each check raises an InputError that names the field.
"""

from dataclasses import dataclass

from infra.environments.checks import between, matches, require


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """Keyless access for the workflows of one GitHub repository: a planner that reads, a deployer behind approval."""

    repository: str
    """owner/name, as GitHub spells it."""
    environment: str = "production"
    """The repository's environment in which a job must run to deploy; protect it with reviewers."""

    def __post_init__(self) -> None:
        form = r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}"
        matches("delivery.repository", self.repository, form, "owner/name", "write it without https://")
        matches("delivery.environment", self.environment, r"[A-Za-z0-9_-]{1,64}", "a name", "correct it")


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """A monthly budget of the project; it warns, it does not stop anything."""

    billing_account: str
    monthly_usd: int
    """In `currency`, despite the field's name."""
    thresholds: tuple[float, ...] = (0.5, 0.9, 1.0)
    currency: str = "USD"
    """The billing account's currency; the API rejects others. `gcloud billing accounts describe`."""

    def __post_init__(self) -> None:
        pattern = r"[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}"
        allowed = "a billing account of the form 0X0X0X-0X0X0X-0X0X0X"
        matches("budget.billing_account", self.billing_account, pattern, allowed, "`gcloud billing accounts list`")
        matches(
            "budget.currency", self.currency, r"[A-Z]{3}", "three letters such as EUR", "write the account's currency"
        )
        between("budget.monthly_usd", self.monthly_usd, 1, 100_000_000)
        require(bool(self.thresholds), "budget.thresholds", "()", "at least one share", "write (0.5, 0.9, 1.0)")
        for threshold in self.thresholds:
            between("budget.thresholds", threshold, 0.01, 2.0)
