"""Runs that are kept apart: each writes below its own prefix of the checkpoints, under an identity
of its own.
"""

# Why it is so: infra/decisions/0069.

from dataclasses import dataclass

from holdfast.vocabulary.roles import TEAMS_FOLDER
from infra.environments.checks import between, dns_name, one_of, require, unique

DEFAULT_RUN = "default"
"""Folder of the checkpoints below which all training writes where no runs are listed, as the
account `trainer`.
"""
READERS = ("batch", "server")
"""Roles that load checkpoints of runs and write none."""
MAX_RUNS = 90
MAX_CONDITIONS = 100
"""Bindings with a condition that a bucket's policy holds."""
MAX_INDICES = 12
"""A condition holds 12 operators, and each prefix but the first takes one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    name: str
    """Of the job, and of its checkpoints unless `indices`."""
    indices: int = 0
    """Pods that train apart, each as a run of its own: NAME-0, NAME-1, ..."""
    read_by: tuple[str, ...] = ()
    """Who else may load its checkpoints: batch, server."""

    def __post_init__(self) -> None:
        dns_name("storage.runs[].name", self.name, 50)
        fix = "choose another name"
        require(
            self.name != TEAMS_FOLDER,
            "storage.runs[].name",
            self.name,
            "any other: teams save there",
            fix,
        )
        between(f"storage.runs[{self.name}].indices", self.indices, 0, MAX_INDICES)
        unique(f"storage.runs[{self.name}].read_by", self.read_by)
        for role in self.read_by:
            one_of(f"storage.runs[{self.name}].read_by", role, READERS)

    @property
    def account(self) -> str:
        """Kubernetes service account of its pods."""
        return f"run-{self.name}"

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Of its objects. Each ends with a slash: `train/` holds nothing of `train-2`."""
        numbered = tuple(f"{self.name}-{index}/" for index in range(self.indices))
        return numbered or (f"{self.name}/",)


def check_apart(runs: tuple[Run, ...]) -> None:
    """InputError unless no two runs share a name or a prefix."""
    require(
        len(runs) <= MAX_RUNS,
        "storage.runs",
        len(runs),
        f"at most {MAX_RUNS}",
        "remove those that have ended",
    )
    unique("storage.runs[].name", [run.name for run in runs])
    unique("storage.runs: prefixes", [prefix for run in runs for prefix in run.prefixes])
    bindings = conditional_bindings(runs)
    fix = "let fewer runs be read, or remove those that have ended"
    require(
        bindings <= MAX_CONDITIONS,
        "storage.runs: bindings",
        bindings,
        f"at most {MAX_CONDITIONS}",
        fix,
    )


def conditional_bindings(runs: tuple[Run, ...]) -> int:
    """Bindings with a condition that runs take of the bucket's policy."""
    return len(runs) + sum(len(readable(runs, role)) for role in READERS)


def readable(runs: tuple[Run, ...], role: str) -> list[tuple[str, ...]]:
    """Prefixes that a role may read, as many together as one condition holds."""
    return of_condition(
        tuple(prefix for run in runs if role in run.read_by for prefix in run.prefixes)
    )


def of_condition(prefixes: tuple[str, ...]) -> list[tuple[str, ...]]:
    """As many together as one condition holds."""
    return [prefixes[at : at + MAX_INDICES] for at in range(0, len(prefixes), MAX_INDICES)]
