"""Teams that share a cluster: their namespaces, guaranteed GPUs, budgets, and members who may
submit there.
"""

import itertools
from collections import Counter
from dataclasses import dataclass

from holdfast.vocabulary.kubernetes import NAMESPACE_KUEUE, SYSTEM_NAMESPACES
from holdfast.vocabulary.roles import JOB_ROLES, KSA_NAMESPACES, team_folder, team_role
from infra.environments.capacity import Quota
from infra.environments.checks import (
    between,
    dns_name,
    egress_targets,
    forms,
    require,
    require_recipients,
    unique,
)
from infra.environments.runs import (
    MAX_CONDITIONS,
    Run,
    count_conditional_bindings,
    group_by_condition,
    list_prefixes,
)

TAKEN = {
    *KSA_NAMESPACES.values(),
    *SYSTEM_NAMESPACES,
    NAMESPACE_KUEUE,
    "jobset-system",
    "gpu-metrics",
    "default",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Team:
    """A team besides the default team, which has the namespaces training, batch, serving and
    monitoring. Its jobs share a Google service account, which can use the team's folder of the
    checkpoints and no other.
    """

    name: str
    members: str = ""
    """Google group whose members submit, stop and read jobs in the team's namespaces, and can do
    nothing else. It must be in security.rbac_security_group. Empty: only the platform team submits.
    """
    namespaces: tuple[str, ...] = ()
    """Empty: one with the team's name. Training runs of the team live in the first."""
    quotas: tuple[Quota, ...] = ()
    """GPUs of an accelerator that the team is guaranteed in each capacity, taken from the
    environment's. It borrows what others leave idle, and gives back what it borrowed.
    """
    limits: tuple[Quota, ...] = ()
    """GPUs of an accelerator that the team uses at most in each capacity, borrowed ones included.
    An accelerator without a limit: all that others leave idle.
    """
    service_gpus: int = 0
    """GPUs of all its services at most, on demand and on Spot; they run in its first namespace. No
    queue counts them. 0: it has no services.
    """
    budget_usd: int = 0
    """Budget of a month, by Google's cost allocation, in the currency of `budget`; 0: none. It
    warns as `budget` does, the team's channels first. `holdfast report` compares receipts with it.
    """
    alert_emails: tuple[str, ...] = ()
    """Addresses that get the alerts about the team's jobs; those of `alerts` get them too."""
    alert_channels: tuple[str, ...] = ()
    """Existing channels for the same alerts: projects/P/notificationChannels/N."""
    egress: tuple[str, ...] = ()
    """Hosts and ranges that its pods may reach besides those of the environment's `egress`."""
    runs: tuple[str, ...] = ()
    """Names of storage.runs that train in the team's first namespace. Jobs of other names save in
    the team's folder.
    """

    def __post_init__(self) -> None:
        dns_name("teams[].name", self.name, 20)
        prefix = f"teams[{self.name}]."
        forms("teams.", self, "members", "alert_emails", "alert_channels")
        require_recipients(f"{prefix}alert_channels", self.alert_emails, self.alert_channels)
        egress_targets(f"{prefix}egress", self.egress)
        between(f"{prefix}budget_usd", self.budget_usd, 0, 100_000_000)
        between(f"{prefix}service_gpus", self.service_gpus, 0, 10_000)
        for namespace in self.namespaces:
            dns_name(f"{prefix}namespaces", namespace, 40)
        unique(f"{prefix}quotas[].source", [quota.source for quota in self.quotas])
        unique(f"{prefix}limits[].source", [limit.source for limit in self.limits])
        quotas = {quota.source: quota.gpus for quota in self.quotas}
        for limit in self.limits:
            quota_gpus = quotas.get(limit.source, 0)
            require(
                limit.gpus >= quota_gpus,
                f"{prefix}limits[{limit.source}].gpus",
                limit.gpus,
                f"at least {quota_gpus}, the quota",
                "raise the limit, or lower the quota",
            )
        # A budget takes one label with one value.
        require(
            not self.budget_usd or len(self.spaces) == 1,
            f"{prefix}budget_usd",
            self.budget_usd,
            "0 with several namespaces",
            "one namespace, or no budget",
        )

    @property
    def role(self) -> str:
        """The role of its Google service account."""
        return team_role(self.name)

    @property
    def folder(self) -> str:
        """The folder of its checkpoints, other than those of `runs`."""
        return team_folder(self.name)

    @property
    def pod_identities(self) -> list[tuple[str, str]]:
        """The Kubernetes accounts of its pods, as (namespace, name)."""
        identities: list[tuple[str, str]] = [*itertools.product(self.spaces, JOB_ROLES)]
        if self.service_gpus:
            identities.append((self.spaces[0], "server"))
        return identities

    @property
    def spaces(self) -> tuple[str, ...]:
        return self.namespaces or (self.name,)


def check(
    teams: tuple[Team, ...],
    *,
    runs: tuple[Run, ...],
    gpus: dict[str, int],
    groups: bool,
    budget: bool,
) -> None:
    """Raise InputError unless teams fit each other and the environment. `gpus`: accelerator -> the
    most that one capacity lends; `groups`: role bindings by Google group are on; `budget`: the
    environment has one.
    """
    spaces = list(TAKEN)
    team_runs: list[str] = []
    totals: Counter[str] = Counter()
    for team in teams:
        spaces += team.spaces
        team_runs += team.runs
        for quota in team.quotas:
            totals[quota.source] += quota.gpus
    unique("teams[].name", [*(team.name for team in teams), "default"])
    unique("teams[].namespaces", spaces)
    unique("teams[].runs", team_runs)
    for team in teams:
        _check_team(
            team,
            [run.name for run in runs],
            groups=groups,
            budget=budget,
        )
    for accelerator, total in totals.items():
        limit = gpus.get(accelerator, 0)
        require(
            total <= limit,
            f"teams[].quotas[{accelerator}].gpus",
            total,
            f"at most {limit} over all teams",
            f"accelerators are {', '.join(gpus)}; lower the quotas of teams",
        )
    for team in teams:
        for limit in team.limits:
            require(
                limit.source in gpus,
                f"teams[{team.name}].limits[].source",
                limit.source,
                ", ".join(gpus) or "none",
                "correct the accelerator",
            )
    bindings = count_conditional_bindings(runs)
    for team in teams:
        bindings += 1 + len(group_by_condition(list_team_prefixes(team, runs)))
    require(
        bindings <= MAX_CONDITIONS,
        "teams and storage.runs: bindings",
        bindings,
        f"at most {MAX_CONDITIONS}",
        "let fewer runs be read, or remove those that have ended",
    )


def list_team_prefixes(team: Team, runs: tuple[Run, ...]) -> list[str]:
    """Return the prefixes of checkpoints of the team's listed runs."""
    return list_prefixes(run for run in runs if run.name in team.runs)


def _check_team(
    team: Team,
    runs: list[str],
    *,
    groups: bool,
    budget: bool,
) -> None:
    prefix = f"teams[{team.name}]."
    missing = sorted(set(team.runs) - set(runs))
    require(
        not missing,
        f"{prefix}runs",
        ", ".join(missing),
        ", ".join(runs) or "none: storage.runs is empty",
        "add it to storage.runs",
    )
    require(
        groups or not team.members,
        f"{prefix}members",
        team.members,
        "a group where GKE reads groups",
        'set security.rbac_security_group="gke-security-groups@your-domain", and put the group'
        " into it",
    )
    require(
        budget or not team.budget_usd,
        f"{prefix}budget_usd",
        team.budget_usd,
        "0 without budget",
        "set budget, whose billing account it takes",
    )
