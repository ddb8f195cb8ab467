"""Runs that are kept apart: each writes below its own prefix of the checkpoints, under an identity of its own."""

# Why it is so: infra/decisions/0069.

from dataclasses import dataclass

from holdfast.contract.errors import InputError
from infra.environments.checks import between, dns_name, require, unique

SHARED = "trainer"
"""The Kubernetes account of all training where runs are not kept apart."""
MAX_RUNS = 90
"""A bucket's policy holds 100 bindings with a condition."""
MAX_INDICES = 12
"""A condition holds 12 operators, and each prefix but the first takes one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    name: str
    """Of the job, and of its checkpoints unless `indices`."""
    indices: int = 0
    """Pods that train apart, each as a run of its own: NAME-0, NAME-1, ..."""

    def __post_init__(self) -> None:
        dns_name("storage.runs[].name", self.name, 50)
        between(f"storage.runs[{self.name}].indices", self.indices, 0, MAX_INDICES)

    @property
    def account(self) -> str:
        """Kubernetes service account of its pods."""
        return f"run-{self.name}"

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Of its objects. Each ends with a slash: `train/` holds nothing of `train-2`."""
        numbered = tuple(f"{self.name}-{index}/" for index in range(self.indices))
        return numbered or (f"{self.name}/",)


def check_apart(runs: tuple[Run, ...], *, folders: bool) -> None:
    """InputError unless no two runs share a name or a prefix."""
    require(len(runs) <= MAX_RUNS, "storage.runs", len(runs), f"at most {MAX_RUNS}", "remove those that have ended")
    unique("storage.runs[].name", [run.name for run in runs])
    unique("storage.runs: prefixes", [prefix for run in runs for prefix in run.prefixes])
    # There a writer makes folders too, which no condition on objects covers.
    require(
        not (runs and folders), "storage.hierarchical_namespace", True, "False where storage.runs are kept apart",
        "leave folders off, or runs empty",
    )  # fmt: skip


def account_of(runs: tuple[Run, ...], name: str) -> str:
    """Kubernetes account under which the run `name` trains."""
    if not runs:
        return SHARED
    found = next((run.account for run in runs if run.name == name), None)
    if found is None:
        raise InputError(
            "the run has no place among the checkpoints", got=name,
            allowed=", ".join(run.name for run in runs),
            fix=f'add Run(name="{name}") to storage.runs of the environment, then make deploy and make apply',
        )  # fmt: skip
    return found
