"""Isolated runs: each writes checkpoints below its own prefix only, under its own identity."""

# Decision: infra/decisions/0069.

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.vocabulary.roles import TEAMS_FOLDER
from infra.environments.checks import between, dns_name, require, require_choice, unique

DEFAULT_RUN = "default"
"""The folder of the checkpoints below which all training writes if no runs are listed, as the
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
    """The name of the job, and of its checkpoints unless `indices` is set."""
    indices: int = 0
    """The number of pods that train separately, as the runs NAME-0, NAME-1, ..."""
    read_by: tuple[str, ...] = ()
    """Other roles that may load its checkpoints: batch, server."""

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
            require_choice(f"storage.runs[{self.name}].read_by", role, READERS)

    @property
    def account(self) -> str:
        """The Kubernetes service account of its pods."""
        return f"run-{self.name}"

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The prefixes of its objects. They end with a slash, so that `train/` excludes
        `train-2`.
        """
        if not self.indices:
            return (f"{self.name}/",)
        return tuple(f"{self.name}-{index}/" for index in range(self.indices))


def check_apart(runs: tuple[Run, ...]) -> None:
    """Raise InputError if two runs share a name or a prefix, or if there are too many."""
    require(
        len(runs) <= MAX_RUNS,
        "storage.runs",
        len(runs),
        f"at most {MAX_RUNS}",
        "remove those that have ended",
    )
    unique("storage.runs[].name", [run.name for run in runs])
    unique("storage.runs: prefixes", list_prefixes(runs))
    bindings = count_conditional_bindings(runs)
    fix = "let fewer runs be read, or remove those that have ended"
    require(
        bindings <= MAX_CONDITIONS,
        "storage.runs: bindings",
        bindings,
        f"at most {MAX_CONDITIONS}",
        fix,
    )


def count_conditional_bindings(runs: tuple[Run, ...]) -> int:
    """Return how many conditional bindings of the bucket's policy these runs need."""
    return len(runs) + sum(len(readable(runs, role)) for role in READERS)


def readable(runs: tuple[Run, ...], role: str) -> list[tuple[str, ...]]:
    """Return the prefixes that a role may read, in groups that fit into one condition."""
    return group_by_condition(list_prefixes([run for run in runs if role in run.read_by]))


def group_by_condition(prefixes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the prefixes in groups that fit into one condition."""
    starts = range(0, len(prefixes), MAX_INDICES)
    return [tuple(prefixes[start : start + MAX_INDICES]) for start in starts]


def list_prefixes(runs: Iterable[Run]) -> list[str]:
    prefixes: list[str] = []
    for run in runs:
        prefixes += run.prefixes
    return prefixes
